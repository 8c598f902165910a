-- The forms in which a Slurm job names its QPUs: licences, generic resources, and the option --qpu. No I/O but for
-- the daemon's list of names.

-- qtandem:settings (written by `qtandem install slurm`)
local SERVER = "qtandem"
local NAMES = "/run/qtandem/names"
-- qtandem:end

-- Slurm's own default server holds whatever licences a site has.
local SHARED = SERVER == "slurmdb"
local GRES = "qpu"
local TRES_FIELDS = { "tres_per_node", "tres_per_task", "tres_per_job", "tres_per_socket" }

local M = {}

-- Native names by name, from the list that the daemon leaves for when it is down. It also tells QPUs from other
-- licences of a server that a site shares with them; without it all count as QPUs, and the daemon is asked.
local function native_names()
  local names = {}
  local file = io.open(NAMES, "r")
  for line in file and file:lines() or function() end do
    local name, native = line:match("^([^\t]+)\t([%w_]+)")
    if name then
      names[name], names[native] = native, native
    end
  end
  if file then
    file:close()
  end
  return names
end

-- The native name behind one plain name.
function M.native(name)
  return native_names()[name]
end

-- Our licences and the others of a licence text, each as a list; `choice` where any are joined by "|".
function M.split_licenses(text)
  local ours, others, known = {}, {}, nil
  for entry in (text or ""):gmatch("[^,;|]+") do
    -- Anchored and greedy: linear in texts of any length, where trimming by gsub is quadratic.
    entry = (entry:match("^.*%S") or ""):gsub("^%s+", "")
    local name, server = entry:match("^([^@]*)@([^:=@(]+)")
    local list = others
    if server == SERVER then
      known = known or (SHARED and native_names() or {})
      list = (next(known) and not known[name]) and others or ours
    end
    list[#list + 1] = entry
  end
  return ours, others, (text or ""):find("|", 1, true) ~= nil
end

-- What the job's fields of generic resources (--gres, --tres-per-task) say of QPUs: `named` as items of a request
-- ("fez", "fez:2"), `count` of those without a name, `rest` the fields without QPUs; nil if there are none.
function M.split_gres(job)
  local found
  for _, field in ipairs(TRES_FIELDS) do
    local text, rest, hit = job[field], {}, false
    for entry in (type(text) == "string" and text or ""):gmatch("[^,]+") do
      local tail = entry:match("^gres[/:]" .. GRES .. "$") and "" or entry:match("^gres[/:]" .. GRES .. "[:=](.*)$")
      if tail then
        hit = true
        found = found or { named = {}, rest = {} }
        local name, count = tail:match("^([^:=]*)[:=](%d+)$")
        if name then
          found.named[#found.named + 1] = count == "1" and name or name .. ":" .. count
        elseif tail == "" or tail:match("^%d+$") then
          found.count = (found.count or 0) + (tonumber(tail) or 1)
        else
          found.named[#found.named + 1] = tail
        end
      else
        rest[#rest + 1] = entry
      end
    end
    if hit then
      found.rest[field] = table.concat(rest, ",")
    end
  end
  return found
end

-- Take the QPUs out of the fields: a QPU is no part of a node, and its licence stands for it.
function M.move_gres(job, gres)
  for field, rest in pairs(gres and gres.rest or {}) do
    job[field] = rest
    if field == "tres_per_task" and rest == "" then
      -- The job's own srun would ask for it again.
      job.tres_bind = ""
      job.environment["SLURM_TRES_PER_TASK"] = ""
      job.environment["SLURM_TRES_BIND"] = ""
    end
  end
end

-- What the job asks of its nodes, for the daemon's planner; nothing where that is too long, or not the same on each node.
function M.shape(job)
  local function amount(value)
    -- Slurm's own numbers for "not set" and "no limit" are the highest of 16 and of 32 bits.
    local given = type(value) == "number" and value > 0 and value < 4294967290 and value ~= 65534 and value ~= 65535
    return given and string.format("%.0f", value) or nil
  end
  for _, field in ipairs({ "tres_per_task", "tres_per_socket" }) do
    if type(job[field]) == "string" and job[field]:find("gpu", 1, true) then
      return {}
    end
  end
  local gres = {}
  for _, field in ipairs({ "tres_per_node", "tres_per_job" }) do
    gres[#gres + 1] = type(job[field]) == "string" and job[field] ~= "" and job[field] or nil
  end
  local fields = {
    qos = job.qos, reservation = job.reservation, features = job.features, excluded = job.exc_nodes,
    gres = table.concat(gres, ","),
  }
  for _, text in pairs(fields) do
    if type(text) ~= "string" or #text > 1024 then
      return {}
    end
  end
  fields.tasks, fields.cpus_per_task = amount(job.num_tasks), amount(job.cpus_per_task)
  fields.min_cpus, fields.min_nodes = amount(job.min_cpus), amount(job.min_nodes)
  fields.memory_node_mb, fields.memory_cpu_mb = amount(job.min_mem_per_node), amount(job.min_mem_per_cpu)
  fields.time_limit, fields.exclusive = amount(job.time_limit), job.shared == 0 and "true" or nil
  return fields
end

-- The forms in which a job names its QPUs, as one request and the licences that must mean the same; a third
-- element where they cannot be read as one.
function M.read(job, request, ours, gres)
  local native = table.concat(ours, ",")
  if not gres then
    return request, native
  end
  if gres.rest.tres_per_task and job.script == nil then
    return nil, nil, "A step cannot take a QPU from --tres-per-task. Write --qpu=" .. (gres.named[1] or request or "NAME") .. "."
  end
  for _, item in ipairs(gres.named) do
    if not item:match("^[%w_][%w_.-]*$") and not item:match("^[%w_][%w_.-]*:%d+$") then
      return nil, nil, "'" .. item .. "' names no QPU in --gres. Write --gres=qpu:NAME, or --qpu=" .. item .. "."
    end
  end
  if gres.count and #gres.named > 0 then
    return nil, nil, "--gres gives a QPU with a name and one without. Write --qpu=" .. table.concat(gres.named, "+") .. "."
  end
  local count = gres.count or 0
  if count > 1 and not (request or ""):match("^[^+,/|]+:" .. count .. "$") then
    local name = (request or "NAME"):match("^[^:]*")
    return nil, nil, "--gres=qpu:" .. count .. " does not say the same as " .. (request and "--qpu=" .. request or "a name")
      .. ". Write --qpu=" .. name .. ":" .. count .. "."
  end
  if #gres.named == 0 then
    if not request and native == "" and count > 0 then
      return nil, nil, "--gres=qpu does not say which QPU. Write --qpu=NAME; qtandem resources lists the names."
    end
    return request, native
  end
  local asked = table.concat(gres.named, "+")
  if not request then
    return asked, native
  end
  local same = {}
  for _, item in ipairs(gres.named) do
    local name, slots = item:match("^([^:]*):?(%d*)$")
    same[#same + 1] = name .. "@" .. SERVER .. ":" .. (slots == "" and "1" or slots)
  end
  if native ~= "" then
    return nil, nil, "--qpu, --gres and --licenses name QPUs at once. Write --qpu=" .. request .. " alone."
  end
  return request, table.concat(same, ",")
end

M.shared = SHARED

return M
