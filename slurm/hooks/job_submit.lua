-- Written by `qtandem install slurm` for a site that had no job_submit.lua. Add the site's own rules here:
-- a later install keeps this file as soon as it differs from what was written.
-- slurmctld reads qtandem.lua again when this file changes: qtandem:stamp
local qtandem = dofile("/usr/libexec/qtandem/slurm/qtandem.lua")

function slurm_job_submit(job_desc, part_list, submit_uid)
  return qtandem.submit(job_desc, part_list, submit_uid)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return qtandem.modify(job_desc, job_rec, part_list, modify_uid)
end

return slurm.SUCCESS
