-- Begins each script that gives or compares positions: stops on a replica, and finds the id of the data set. Redis draws
-- a new id when a replica becomes a primary, that is when accepted messages may be lost.
local info = redis.call('INFO', 'replication')
if not string.find(info, 'role:master', 1, true) then
  return redis.error_reply('READONLY this is a replica')
end
local replid = string.sub(string.match(info, 'master_replid:(%x+)'), 1, 16)
-- Begins a new epoch of a topic behind this offset.
local function begin(key, epoch, top)
  redis.call('HSET', key, 'e', epoch, 'r', replid, 's', top or '0')
end
-- Whether a topic was written in another data set and may have come from there whole: in a Redis Cluster slots move from
-- one primary to another. Redis cannot tell; who asks finds out, and has the topic adopted (adopt.lua).
local function is_foreign(id)
  return id and id ~= replid and string.find(redis.call('INFO', 'cluster'), 'cluster_enabled:1', 1, true)
end
local FOREIGN = 'FOREIGN a topic has come from another primary'
