-- Publishes a batch to one topic.
--
-- KEYS: 1 the topic (hash), 2 its messages (stream), then one for each message with an idempotency key.
-- ARGV: 1 channel, 2 an epoch for the case that a new one is needed, 3 who publishes, 4 number of the batch, 5 messages
-- to keep (0: none), 6 for how long, 7 for how long to remember the topic beyond that, 8 how long to remember idempotency
-- keys, 9 how late expiry may be renewed (times in ms), 10 a character for each message, 1 if it has an idempotency key
-- (or nothing if none has), then the messages.
-- Answers: epoch, nodes, offset of the first new message (0: none is new), then index:epoch:offset for each message that
-- was published before; with spaces between.
--
-- Fields of the topic: e epoch, r id of the data set, o offset of the last message, s
-- offset behind which the epoch began, k what is kept, a when the oldest may
-- have to go, x when expiry is to be renewed, b and a publisher: its last batch, when, and the answer.
-- An entry's id is its offset, and behind the dash the time when it expires.
local key, stream = KEYS[1], KEYS[2]
local batch = 'b' .. ARGV[3]
local at = redis.call('HMGET', key, 'e', 'r', 'o', batch, 'k', 'a', 'x')
if at[4] then
  local id, answer = string.match(at[4], '^(%d+) %d+ (.*)$')
  if id == ARGV[4] then
    return answer
  end
  if #id > #ARGV[4] or (#id == #ARGV[4] and id > ARGV[4]) then
    return redis.error_reply('STALE a later batch was accepted')
  end
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local epoch, top = at[1], tonumber(at[3] or 0)
if is_foreign(at[2]) then
  return redis.error_reply(FOREIGN)
end
if not epoch or at[2] ~= replid then
  epoch = ARGV[2]
  begin(key, epoch, at[3])
end
local kept_max, ttl, keyed = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[10]
local kept = ARGV[5] .. ' ' .. ARGV[6]
if top == 0 or (kept_max == 0 and at[5] ~= kept) then
  -- Left over, or not to be kept any more.
  redis.call('UNLINK', stream)
end

local expires = string.format('%.0f', now + ttl)
local payloads, lengths, known = {}, '', ''
local first, next_key = '0', 2
for index = 11, #ARGV do
  local payload, hit = ARGV[index], false
  if string.byte(keyed, index - 10) == 49 then
    next_key = next_key + 1
    hit = redis.call('GET', KEYS[next_key])
  end
  if hit then
    known = known .. ' ' .. (index - 11) .. ':' .. hit
  else
    top = top + 1
    local offset = string.format('%.0f', top)
    if #payloads == 0 then
      first = offset
    end
    payloads[#payloads + 1] = payload
    lengths = lengths .. ' ' .. #payload
    if kept_max > 0 then
      redis.call('XADD', stream, 'MAXLEN', '~', kept_max, offset .. '-' .. expires, 'm', payload)
    end
    if string.byte(keyed, index - 10) == 49 then
      redis.call('SET', KEYS[next_key], epoch .. ':' .. offset, 'PX', ARGV[8])
    end
  end
end

local nodes = 0
if #payloads > 0 then
  local head = '\1' .. epoch .. ' ' .. first .. lengths .. '\n'
  nodes = redis.call('SPUBLISH', ARGV[1], head .. table.concat(payloads))
end
local answer = epoch .. ' ' .. nodes .. ' ' .. first .. known
redis.call('HSET', key, 'o', string.format('%.0f', top), batch, ARGV[4] .. ' ' .. time[1] .. ' ' .. answer)

if kept ~= at[5] or now >= tonumber(at[7] or 0) then
  local late = tonumber(ARGV[9])
  redis.call('PEXPIRE', key, string.format('%.0f', ttl + ARGV[7] + late))
  if kept_max > 0 then
    redis.call('PEXPIRE', stream, string.format('%.0f', ttl + late))
  end
  redis.call('HSET', key, 'k', kept, 'x', string.format('%.0f', now + late))
  if redis.call('HLEN', key) > 64 then
    -- Nodes that have ended leave their fields. Nobody sends a batch again after so long.
    local fields = redis.call('HGETALL', key)
    for index = 1, #fields, 2 do
      local since = string.match(fields[index + 1], '^%d+ (%d+) ')
      if since and string.byte(fields[index]) == 98 and time[1] - since > 600 then
        redis.call('HDEL', key, fields[index])
      end
    end
  end
end

if kept_max > 0 and now >= tonumber(at[6] or 0) then
  -- Redis cannot trim by age, as ids are not times. So that no batch pays for many, this removes a few.
  local oldest, cut, again = redis.call('XRANGE', stream, '-', '+', 'COUNT', 16), nil, now
  for _, entry in ipairs(oldest) do
    local offset, expiry = string.match(entry[1], '^(%d+)-(%d+)$')
    if tonumber(expiry) > now then
      again = expiry
      break
    end
    cut = offset + 1
  end
  if cut then
    redis.call('XTRIM', stream, 'MINID', string.format('%.0f', cut))
  end
  redis.call('HSET', key, 'a', again)
end
return answer
