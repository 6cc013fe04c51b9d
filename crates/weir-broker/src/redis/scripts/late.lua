-- Refuses a call that comes late: it would undo what was asked since. None comes more than two minutes late: then TCP takes
-- what is on its way for gone (RFC 9293, 3.4.2). `key` has the number of the node's last call.
local function refuse_late(key, call)
  local late = 120000
  local last = redis.call('SET', key, call, 'PX', late, 'GET')
  if last and tonumber(last) > tonumber(call) then
    redis.call('SET', key, last, 'PX', late)
    return redis.error_reply('STALE a later call was carried out')
  end
end
