-- Reads a part of what is kept of a topic.
--
-- KEYS: 1 the topic (hash), 2 its messages (stream).
-- ARGV: 1 an epoch for the case that a new one is needed, 2 for how long to remember a new topic (ms), 3 an offset, 4
-- how many messages above it, 5 how many bytes these may have; the first one may have more.
-- Answers: epoch, offset of the last message, offset behind which the epoch began, offset of the oldest that is kept, then offset and payload of each.
local key, stream = KEYS[1], KEYS[2]
local at = redis.call('HMGET', key, 'e', 'r', 'o', 'k', 's')
local epoch, top, began = at[1], tonumber(at[3] or 0), at[5] or '0'
if is_foreign(at[2]) then
  return redis.error_reply(FOREIGN)
end
if not epoch or at[2] ~= replid then
  epoch = ARGV[1]
  began = at[3] or '0'
  begin(key, epoch, began)
  if redis.call('PTTL', key) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', key, ARGV[2])
  end
end
local function number(value)
  return string.format('%.0f', value)
end
local kept_max = tonumber(string.match(at[4] or '0', '^%d+'))
if top == 0 or kept_max == 0 then
  return { epoch, number(top), began, number(top + 1) }
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- The first entry at or above an offset that has not expired, if the one found there has not.
local function living(offset)
  local entry = redis.call('XRANGE', stream, number(offset), '+', 'COUNT', 1)[1]
  if entry then
    local found, expiry = string.match(entry[1], '^(%d+)-(%d+)$')
    return tonumber(expiry) > now and tonumber(found)
  end
end
-- Redis trims in larger steps than asked for, and not by age.
local low, high = math.max(1, top - kept_max + 1), top + 1
local first = living(low)
if not first then
  while low < high do
    local middle = math.floor((low + high) / 2)
    if living(middle) then
      high = middle
    else
      low = middle + 1
    end
  end
  first = living(low) or top + 1
end

local answer = { epoch, number(top), began, number(first) }
local from = math.max(first, tonumber(ARGV[3]) + 1)
local left, bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
while from <= top and left > 0 do
  -- Some at a time, so that few are taken out that have no room.
  local count = math.min(left, 32)
  local entries = redis.call('XRANGE', stream, number(from), '+', 'COUNT', count)
  for _, entry in ipairs(entries) do
    local offset, expiry = string.match(entry[1], '^(%d+)-(%d+)$')
    if tonumber(expiry) > now then
      bytes = bytes - #entry[2][2]
      if bytes < 0 and #answer > 4 then
        return answer
      end
      answer[#answer + 1] = offset
      answer[#answer + 1] = entry[2][2]
    end
    from = offset + 1
  end
  if #entries < count then
    break
  end
  left = left - count
end
return answer
