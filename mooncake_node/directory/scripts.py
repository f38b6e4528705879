"""What the server does in one step. Each script touches one key alone, so that a cluster can run it on any server.

The rules of an entry are those of `entries`; `encoding` tells how its values look. Generations are compared as text.
"""

import hashlib

import msgspec


class Script(msgspec.Struct, frozen=True):
    """A script and the name by which the server knows it once it is loaded."""

    text: str
    sha: str


def _script(*parts: str) -> Script:
    text = "".join(parts)
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


_VALUES = """
local function parse(name, value)
  local role, incarnation, generation, epoch, place = string.match(value, '^([os]):(%d+):(%x+):(%d+):([md]):')
  return {name = name, value = value, owns = role == 'o', incarnation = incarnation, generation = generation,
          epoch = tonumber(epoch), in_memory = place == 'm'}
end
local function holdings()
  local flat, held, removed, tombstone = redis.call('HGETALL', KEYS[1]), {}, {}, nil
  for i = 1, #flat, 2 do
    local name, value = flat[i], flat[i + 1]
    if name == '!' then tombstone = value
    elseif string.sub(value, 1, 1) == 'x' then removed[#removed + 1] = {name = name, value = value}
    else held[#held + 1] = parse(name, value) end
  end
  return held, tombstone, flat, removed
end
local function owner_of(held)
  for _, h in ipairs(held) do if h.owns then return h end end
end
local function before(a, b)
  if a.owns ~= b.owns then return a.owns end
  if a.in_memory ~= b.in_memory then return a.in_memory end
  local x, y = tonumber(a.incarnation), tonumber(b.incarnation)
  if x ~= y then return x > y end
  return a.name < b.name
end
local function foremost(held)
  local first = held[1]
  for _, h in ipairs(held) do if before(h, first) then first = h end end
  return first
end
local function as(role, h)
  redis.call('HSET', KEYS[1], h.name, role .. string.sub(h.value, 2))
end
"""

# ARGV: node, value, '1' if it replaces, then the lives known to be over, each as 'incarnation:node'.
# Gives {'created', node, value, ...} of what gave way, {'taken', node, value} or {'old', generation}.
CREATE = _script(
    _VALUES,
    """
local new, replaces, dead = parse(ARGV[1], ARGV[2]), ARGV[3] == '1', {}
for i = 4, #ARGV do dead[ARGV[i]] = true end
local held, tombstone, _, removed = holdings()
local absent, present, others, again = {'created'}, {}, {}, false
local newest = tombstone or '0000000000000000'
for _, h in ipairs(held) do
  if h.name == new.name and h.generation == new.generation then
    again = true
  elseif dead[h.incarnation .. ':' .. h.name] or h.epoch < new.epoch then
    absent[#absent + 1] = h.name
    absent[#absent + 1] = h.value
  else
    present[#present + 1] = h
    if h.name ~= new.name then others[#others + 1] = h end
    if h.generation > newest then newest = h.generation end
  end
end
if again then
  for i = 2, #absent, 2 do redis.call('HDEL', KEYS[1], absent[i]) end
  for _, h in ipairs(present) do as('s', h) end
  redis.call('HSET', KEYS[1], new.name, new.value)
  return absent
end
if #others > 0 and not replaces then
  local by = foremost(others)
  return {'taken', by.name, by.value}
end
if newest >= new.generation then return {'old', newest} end
-- What takes room comes first: a server that has none refuses a script's first change, but none after that.
redis.call('HSET', KEYS[1], new.name, new.value)
redis.call('PERSIST', KEYS[1])
local gone = {'created'}
for _, given_up in ipairs({held, removed}) do
  for _, h in ipairs(given_up) do
    if h.name ~= new.name then redis.call('HDEL', KEYS[1], h.name) end
    gone[#gone + 1] = h.name
    gone[#gone + 1] = h.value
  end
end
return gone
""",
)

# ARGV: node, value. Gives 1 or 0.
PUBLISH = _script(
    _VALUES,
    """
local new, owner = parse(ARGV[1], ARGV[2]), owner_of(holdings())
if not owner or owner.generation ~= new.generation then return 0 end
if owner.name == new.name then return owner.incarnation == new.incarnation and 1 or 0 end
redis.call('HSET', KEYS[1], new.name, new.value)
return 1
""",
)

# ARGV: node, value. Gives 1 or 0.
UPDATE = _script(
    _VALUES,
    """
local new, value = parse(ARGV[1], ARGV[2]), redis.call('HGET', KEYS[1], ARGV[1])
if not value then return 0 end
local old = parse(ARGV[1], value)
if old.incarnation ~= new.incarnation or old.generation ~= new.generation then return 0 end
as(old.owns and 'o' or 's', new)
return 1
""",
)

# ARGV: node and incarnation of the owner, then the new owner's node and value. Gives 1 or 0.
TRANSFER = _script(
    _VALUES,
    """
local to, owner = parse(ARGV[3], ARGV[4]), owner_of(holdings())
if not owner or owner.generation ~= to.generation then return 0 end
if owner.name == to.name and owner.incarnation == to.incarnation then return 1 end
if owner.name ~= ARGV[1] or owner.incarnation ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], owner.name)
redis.call('HSET', KEYS[1], to.name, to.value)
return 1
""",
)

# ARGV: generation or '', milliseconds that the tombstone stays. Gives fields and values as they were; no holding among
# them: nothing was changed.
REMOVE = _script(
    _VALUES,
    """
local held, tombstone, flat = holdings()
local owner = owner_of(held)
if not owner then return flat end
if ARGV[1] ~= '' and ARGV[1] ~= owner.generation then return tombstone and {'!', tombstone} or {} end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], '!', owner.generation)
for _, h in ipairs(held) do as('x', h) end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return flat
""",
)

# ARGV: node, incarnation, generation, milliseconds that a tombstone stays by itself.
WITHDRAW = _script(
    _VALUES,
    """
local value = redis.call('HGET', KEYS[1], ARGV[1])
if not value then return 0 end
local old = parse(ARGV[1], value)
if old.incarnation ~= ARGV[2] or old.generation ~= ARGV[3] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
local heir = foremost((holdings()))
if not heir then
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
elseif old.owns then
  as('o', heir)
end
return 1
""",
)

# A number above every one given before, also by a server that has since lost its data: never below the wall clock's
# milliseconds, nor at or below what the caller has seen. Numbers are below 2^53, where doubles are exact.
# ARGV: the highest that the caller knows. Gives the number as text.
RISE = _script("""
local time = redis.call('TIME')
local clock = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local number = math.max(tonumber(redis.call('GET', KEYS[1]) or '0') + 1, tonumber(ARGV[1]) + 1, clock)
local text = string.format('%.0f', number)
redis.call('SET', KEYS[1], text)
return text
""")

# The number there, not below the one the caller knows. ARGV: that one. Gives the number as text.
RESTORE = _script("""
local there = redis.call('GET', KEYS[1]) or '0'
if tonumber(there) >= tonumber(ARGV[1]) then return there end
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]
""")

# A name's slot, of a hash of them: the one it has, else the one it is known to have had if that is free, else the
# lowest free one. ARGV: name, slots in all, '' or the one it had, then slots that are known to be other nodes'.
# Gives the slot, or -1 if all are taken.
SLOT = _script("""
local slot = redis.call('HGET', KEYS[1], ARGV[1])
if slot then return tonumber(slot) end
local taken, others = {}, {}
for _, other in ipairs(redis.call('HVALS', KEYS[1])) do taken[other] = true end
for i = 4, #ARGV do others[ARGV[i]] = true end
slot = ARGV[3]
if slot == '' or taken[slot] then
  slot = nil
  for i = 0, tonumber(ARGV[2]) - 1 do
    local text = string.format('%d', i)
    if not taken[text] and not others[text] then slot = text break end
  end
end
if not slot then return -1 end
redis.call('HSET', KEYS[1], ARGV[1], slot)
return tonumber(slot)
""")

# A node's life as it is there: {value, when it ends in the server's milliseconds, how many are left}, {} if none.
LOOK = _script("""
local value = redis.call('GET', KEYS[1])
if not value then return {} end
local time, left = redis.call('TIME'), redis.call('PTTL', KEYS[1])
return {value, string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) + left), left}
""")

# ARGV: incarnation, value, milliseconds to live. Gives 1, or 0 if that life is not the one there.
RENEW = _script("""
local value = redis.call('GET', KEYS[1])
if not value or string.match(value, '^%d+') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
""")

# ARGV: incarnation. Gives 1, or 0 if that life is not the one there.
LEAVE = _script("""
local value = redis.call('GET', KEYS[1])
if not value or string.match(value, '^%d+') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
""")
