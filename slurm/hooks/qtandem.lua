-- qtandem: admits or refuses jobs that ask for a QPU, and writes the licences of those that are admitted.
--
-- A site's own job_submit.lua includes it with two lines:
--   local qtandem = dofile("/usr/libexec/qtandem/slurm/qtandem.lua")
-- and, in slurm_job_submit and slurm_job_modify, before its own `return slurm.SUCCESS`:
--   local verdict = qtandem.submit(job_desc, part_list, submit_uid); if verdict ~= slurm.SUCCESS then return verdict end
--   local verdict = qtandem.modify(job_desc, job_rec, part_list, modify_uid); if verdict ~= slurm.SUCCESS then return verdict end
--
-- slurmctld holds its job lock meanwhile: all I/O of one call shares one deadline, and a job without a QPU
-- causes no I/O at all. Whatever fails, a job that asks for a QPU is refused rather than let through.

-- qtandem:settings (written by `qtandem install slurm`)
local CLUSTER = ""
local SERVER = "qtandem"
local SOCKET = "/run/qtandem/qtandem.sock"
local DEADLINE_MS = 40
local TRUSTED_UIDS = {"0"}
local HOOKS = "/usr/libexec/qtandem/slurm"
-- qtandem:end

local OPTION = "_SLURM_SPANK_OPTION_qpu_qpu="
local CHOICES, PLACED = "qtandem:choices=", "qtandem:placed="
local MAX_ANSWER = 65536
local MAX_HEADERS = 64
-- As much as the daemon reads of one field.
local MAX_FIELD = 4096
local INVALID_LICENSES = 2048
local ACCESS_DENIED = 2002

local M = {}
local forms = dofile(HOOKS .. "/qtandem_forms.lua")

local function plain(value)
  return type(value) == "number" and string.format("%.0f", value) or tostring(value)
end

local function encode(value)
  return (plain(value):gsub("[^A-Za-z0-9_.~-]", function(char)
    return string.format("%%%02X", string.byte(char))
  end))
end

local function decode(text)
  return (text:gsub("%%(%x%x)", function(hex)
    return string.char(tonumber(hex, 16))
  end))
end

local function encode_fields(fields)
  local lines = {}
  for key, value in pairs(fields) do
    if value ~= nil and value ~= "" then
      lines[#lines + 1] = key .. "=" .. encode(value) .. "\n"
    end
  end
  return table.concat(lines)
end

local function decode_fields(text)
  local fields = {}
  for line in text:gmatch("[^\r\n]+") do
    local key, value = line:match("^([%w_.]+)=(.*)$")
    if key then
      fields[key] = decode(value)
    end
  end
  return fields
end

local function open_socket()
  local unix = require("socket.unix")
  if type(unix) == "table" and unix.stream then
    return unix.stream()
  end
  return unix()
end

-- One HTTP exchange; errors are thrown, for the caller's pcall.
local function exchange(client, body, left)
  local function step(method, ...)
    local seconds = left()
    if seconds <= 0 then
      error("deadline")
    end
    client:settimeout(seconds, "b")
    client:settimeout(seconds, "t")
    local value, reason = client[method](client, ...)
    if not value then
      error(tostring(reason))
    end
    return value
  end
  step("connect", SOCKET)
  step("send", table.concat({
    "POST /v1/submit HTTP/1.1",
    "Host: qtandem",
    "Content-Type: text/plain; charset=utf-8",
    "Accept: text/plain",
    "Content-Length: " .. #body,
    "Connection: close",
    "",
    body,
  }, "\r\n"))
  local status = tonumber(step("receive", "*l"):match("^HTTP/1%.%d (%d%d%d)"))
  local length
  for _ = 1, MAX_HEADERS do
    local line = step("receive", "*l")
    if line == "" then
      break
    end
    length = tonumber(line:lower():match("^content%-length:%s*(%d+)")) or length
  end
  if not status or not length or length > MAX_ANSWER then
    error("not an answer of qtandem")
  end
  return status, decode_fields(length > 0 and step("receive", length) or "")
end

-- The daemon's answer, or nil and the reason.
local function ask(fields)
  for key, value in pairs(fields) do
    if #plain(value) > MAX_FIELD then
      return { verdict = "reject", code = "bad-request", message = "The " .. key .. " of the job is over "
        .. MAX_FIELD .. " characters, which is too long for a job with a QPU." }
    end
  end
  local ok, status, answer = pcall(function()
    local gettime = require("socket").gettime
    local started, passed = gettime(), 0
    local function left()
      passed = math.max(passed, gettime() - started)
      return DEADLINE_MS / 1000 - passed
    end
    local client = open_socket()
    local done, code, result = pcall(exchange, client, encode_fields(fields), left)
    client:close()
    if not done then
      error(code, 0)
    end
    return code, result
  end)
  if not ok then
    return nil, tostring(status)
  end
  if status >= 500 then
    return nil, answer.message or ("status " .. status)
  end
  if status ~= 200 then
    return { verdict = "reject", code = answer.code, message = answer.message or ("status " .. status) }
  end
  return answer
end

-- The value of --qpu, nil if it was not given; a second element where two values disagree.
local function request_of(job)
  local found, other
  for _, entry in pairs(job.spank_job_env or {}) do
    if type(entry) == "string" and entry:sub(1, #OPTION) == OPTION then
      local value = entry:sub(#OPTION + 1)
      if found and found ~= value then
        other = value
      end
      found = found or value
    end
  end
  return found, other
end

local function default_partition(part_list)
  for name, part in pairs(part_list or {}) do
    if part.flag_default == 1 or part.flag_default == true then
      return name
    end
  end
end

local function refuse(message, code)
  message = message .. " [" .. (code or "bad-request") .. "]"
  slurm.log_info("qtandem: %s", "refused: " .. message:gsub("%c", " "))
  slurm.log_user("%s", message)
  if code == "not-allowed" or code == "not-yours" then
    return ACCESS_DENIED
  end
  return code == "daemon-unreachable" and slurm.ERROR or INVALID_LICENSES
end

local function refuse_later(reason)
  slurm.log_error("qtandem: %s", "qtandemd did not answer: " .. tostring(reason))
  return refuse("The QPU service does not answer now, so this job cannot be taken. Try again shortly.",
    "daemon-unreachable")
end

local function joined(others, ours)
  local all = {}
  for _, entry in ipairs(others) do
    all[#all + 1] = entry
  end
  if ours and ours ~= "" then
    all[#all + 1] = ours
  end
  return table.concat(all, ",")
end

local WRITABLE = { "licenses", "req_nodes", "exc_nodes", "features" }

local function write_native(job, answer, others)
  for _, field in ipairs(WRITABLE) do
    local value = answer["native." .. field]
    if value and field == "licenses" then
      job.licenses = joined(others, value)
    elseif value then
      job[field] = value
    end
  end
end

-- What goes along in the administrator's comment, which no user can write. `choices`: other QPUs could serve the request
-- too, and while the job is pending the daemon moves it to one that opens earlier. `placed`: the node that the planner
-- found, or what it was pinned to or kept from, which the daemon takes back in time.
local function write_notes(job, answer)
  local present = type(job.admin_comment) == "string" and job.admin_comment or ""
  local text = present:gsub(" ?|? ?" .. CHOICES .. "%S*", ""):gsub(" ?|? ?" .. PLACED .. "%S*", "")
  local function add(note)
    text = text == "" and note or text .. " | " .. note
  end
  if answer.choices and answer.choices ~= "" then
    add(CHOICES .. encode(answer.choices) .. ";pinned=" .. answer["native.licenses"])
  end
  if answer.placed and answer.placed ~= "" then
    add(PLACED .. encode(answer.placed))
  end
  if text ~= present then
    job.admin_comment = text
  end
end

local function verdict_of(answer)
  if answer.verdict == "admit" and answer["native.licenses"] then
    return "admit"
  end
  return answer.verdict == "none" and "none" or "reject"
end

-- Whether the job is a later component of a heterogeneous job: Slurm gives --qpu to all of them, and takes
-- licences in the first alone.
local function follower(job)
  local offset = job.het_job_offset
  return type(offset) == "number" and offset > 0 and offset < 4294967290
end

local function submit(job, part_list, uid)
  local request, second = request_of(job)
  local ours, others, choice = forms.split_licenses(job.licenses)
  local gres = forms.split_gres(job)
  if #ours == 0 and not gres and (not request or follower(job)) then
    return slurm.SUCCESS
  end
  if second then
    return refuse("--qpu is given twice, as " .. request .. " and as " .. second .. ". Join them with + or /.",
      "ambiguous")
  end
  if choice then
    return refuse("A QPU cannot be combined with a choice of licences (|). Write the choice as --qpu=a/b.",
      "unsupported")
  end
  if follower(job) then
    if gres then
      return refuse("Only the first component of a heterogeneous job can have a QPU. Write --qpu=NAME in the first.",
        "unsupported")
    end
    request = nil
  end
  local asked, native, fault = forms.read(job, request, ours, gres)
  if fault then
    return refuse(fault)
  end
  local fields = forms.shape(job)
  fields.manager = "slurm"
  fields.cluster = CLUSTER
  fields.uid = uid
  fields.user = job.user_name
  fields.account = job.account or job.default_account
  fields.partition = job.partition or default_partition(part_list)
  fields.nodes = job.req_nodes
  fields.request = asked
  fields.native = native
  local answer, reason = ask(fields)
  if not answer then
    local known = asked and native == "" and forms.native(asked)
    if not known then
      return refuse_later(reason)
    end
    slurm.log_info("qtandem: %s", "qtandemd did not answer (" .. tostring(reason) .. "); took " .. known .. " by name")
    slurm.log_user("%s", "The QPU service does not answer now; the job waits for " .. asked .. " until it does.")
    job.licenses = joined(others, known .. "@" .. SERVER .. ":1")
    forms.move_gres(job, gres)
    write_notes(job, {})
    return slurm.SUCCESS
  end
  local verdict = verdict_of(answer)
  if verdict == "none" and asked == nil and forms.shared then
    return slurm.SUCCESS
  end
  if verdict ~= "admit" then
    return refuse(answer.message or "The QPU request is refused.", answer.code)
  end
  write_native(job, answer, others)
  write_notes(job, answer)
  forms.move_gres(job, gres)
  if answer.message and answer.message ~= "" then
    slurm.log_user("%s", answer.message)
  end
  return slurm.SUCCESS
end

local function trusted(uid)
  for _, one in ipairs(TRUSTED_UIDS) do
    if plain(uid) == one then
      return true
    end
  end
  return false
end

local function sorted(list)
  local copy = {}
  for position, entry in ipairs(list) do
    copy[position] = entry
  end
  table.sort(copy)
  return table.concat(copy, ",")
end

-- Owners may drop a QPU of a pending job, and may change to what a verdict admits; nobody may change what a
-- running job holds.
local function modify(job, record, part_list, uid)
  local moved = job.partition or job.account or job.req_nodes
  if plain(uid) == "0" then
    return slurm.SUCCESS
  end
  if forms.split_gres(job) then
    return refuse("The QPU of a job cannot be changed by its generic resources. Write licenses=NAME@" .. SERVER .. ":1.",
      "unsupported")
  end
  if job.licenses == nil and (not moved or trusted(uid)) then
    return slurm.SUCCESS
  end
  local had = forms.split_licenses(record.licenses)
  local ours, others, choice = had, {}, false
  if job.licenses ~= nil then
    ours, others, choice = forms.split_licenses(job.licenses)
  end
  local same = sorted(had) == sorted(ours)
  if (#had == 0 and #ours == 0) or (same and not moved) then
    return slurm.SUCCESS
  end
  if not same and record.job_state ~= nil and record.job_state % 256 ~= 0 then
    return refuse("The QPU licences of a job cannot be changed once it has started.", "unsupported")
  end
  if #ours == 0 or trusted(uid) then
    return slurm.SUCCESS
  end
  if choice then
    return refuse("A QPU cannot be combined with a choice of licences (|).", "unsupported")
  end
  local answer, reason = ask({
    manager = "slurm",
    cluster = CLUSTER,
    uid = record.user_id or uid,
    user = record.user_name,
    account = job.account or record.account,
    partition = job.partition or record.partition or default_partition(part_list),
    nodes = job.req_nodes or record.req_nodes,
    native = table.concat(ours, ","),
    job = record.job_id,
  })
  if not answer then
    return refuse_later(reason)
  end
  if verdict_of(answer) ~= "admit" then
    return refuse(answer.message or "The QPU request is refused.", answer.code)
  end
  if not same then
    write_native(job, { ["native.licenses"] = answer["native.licenses"] }, others)
  end
  return slurm.SUCCESS
end

-- A runtime error would let the job through on some versions of Slurm and refuse every job on others.
local function guarded(name, call, asks, ...)
  local ok, result = pcall(call, ...)
  if ok then
    return result
  end
  slurm.log_error("qtandem: %s", name .. ": " .. tostring(result))
  local sure, involved = pcall(asks, ...)
  if sure and not involved then
    return slurm.SUCCESS
  end
  slurm.log_user("%s", "The check of this job's QPU request failed; the site's log has the reason.")
  return slurm.ERROR
end

local function submit_asks(job)
  return request_of(job) ~= nil or #(forms.split_licenses(job.licenses)) > 0 or forms.split_gres(job) ~= nil
end

local function modify_asks(job, record)
  return submit_asks(job) or #(forms.split_licenses(record.licenses)) > 0
end

function M.submit(job, part_list, uid)
  return guarded("submit", submit, submit_asks, job, part_list, uid)
end

function M.modify(job, record, part_list, uid)
  return guarded("modify", modify, modify_asks, job, record, part_list, uid)
end

return M
