package cacheevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/tinylib/msgp/msgp"
	"github.com/zeebo/xxh3"
)

// Kind is the kind of an event.
type Kind uint8

// The kinds.
const (
	// Unknown is an event of a kind that this package does not know. It changes nothing.
	Unknown Kind = iota
	// BlockStored: the engine has added blocks to its cache.
	BlockStored
	// BlockRemoved: the engine has evicted blocks.
	BlockRemoved
	// AllBlocksCleared: the engine has emptied its cache.
	AllBlocksCleared
)

// BlockHash is an engine's name of a block in its cache. It depends on all tokens up to the end of the
// block, and its value has a meaning only within one process of one engine. Hashes that an engine sends
// as byte strings are hashed to 64 bits.
type BlockHash uint64

// Event is a change of an engine's cache. The fields from Parent on are those of BlockStored.
type Event struct {
	Kind   Kind
	Hashes []BlockHash
	// Medium is where the blocks are; empty = the memory of the GPU.
	Medium string
	// Group is the group of layers that the blocks belong to, in models that mix kinds of attention; 0
	// in all others.
	Group int

	// Parent is the block before the first one, unless Root.
	Parent BlockHash
	Root   bool
	// Tokens are the tokens of all blocks, BlockSize each. nil = they are not plain numbers.
	Tokens    []uint32
	BlockSize int
	// Adapter identifies the LoRA adapter: its name, or "#ID" where the engine sends only a number;
	// empty = none.
	Adapter string
	// Extra[i] identifies everything else that block i depends on, such as images and the cache salt;
	// 0 = nothing. It is nil or has an element for every block.
	Extra []uint64
}

// OnGPU reports whether the blocks are in the memory of the GPU, as opposed to a slower tier.
func (e *Event) OnGPU() bool { return e.Medium == "" || e.Medium == mediumGPU }

// mediumGPU is the medium of both engines for their GPU's memory.
const mediumGPU = "GPU"

// Batch is a message of an engine: the changes of one step of its scheduler.
type Batch struct {
	// Seconds is the engine's wall clock, in seconds since 1970. It must not be compared with other
	// clocks.
	Seconds float64
	Events  []Event
	// Rank is the data-parallel rank that the events belong to, -1 if the message does not say.
	Rank int
}

// Limits of a batch.
const (
	maxBlockSize = 1 << 16 // tokens; engines use 1 to 1024
	maxName      = 1 << 10 // bytes of names
)

var errShort = errors.New("the message ends early")

// Decode decodes a message. Engines have sent structures as arrays of their fields in order, without
// the last ones if these have their defaults, and as maps; both are accepted, and so are additional
// fields and unknown kinds of events, which later versions may send.
//
// Sources: vllm/distributed/kv_events.py (array form until 2026; map form since) and
// sglang/srt/disaggregation/kv_events.py, read in November 2026.
func Decode(message []byte) (Batch, error) {
	b := Batch{Rank: -1}
	if _, err := b.decode(message); err != nil {
		return Batch{}, fmt.Errorf("decoding a message of cache events (%d bytes): %w", len(message), err)
	}
	return b, nil
}

// batchFields and the other lists are the fields of structures, in the order of the array form.
var (
	batchFields   = []string{"ts", "events", "data_parallel_rank"}
	storedFields  = []string{"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx"}
	removedFields = []string{"block_hashes", "medium", "group_idx"}
	fieldsOf      = map[Kind][]string{BlockStored: storedFields, BlockRemoved: removedFields}
	kinds         = map[string]Kind{"BlockStored": BlockStored, "BlockRemoved": BlockRemoved, "AllBlocksCleared": AllBlocksCleared}
)

// tagField is the field of the map form with the name of a structure.
const tagField = "type"

func (b *Batch) decode(in []byte) ([]byte, error) {
	seen := false
	rest, err := eachField(in, func(index int, name string) string {
		if index >= 0 && index < len(batchFields) {
			return batchFields[index]
		}
		return name
	}, func(field string, in []byte) (rest []byte, err error) {
		switch field {
		case "ts":
			b.Seconds, rest, err = readFloat(in)
		case "events":
			seen = true
			rest, err = b.decodeEvents(in)
		case "data_parallel_rank", "attn_dp_rank":
			var rank int
			rank, rest, err = readSmall(in, -1)
			b.Rank = rank
		default:
			rest, err = msgp.Skip(in)
		}
		return rest, err
	})
	if err == nil && !seen {
		err = errors.New("it has no events")
	}
	return rest, err
}

func (b *Batch) decodeEvents(in []byte) ([]byte, error) {
	n, in, err := readLength(in)
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	for i := range n {
		var e Event
		if in, err = e.decode(in); err != nil {
			return nil, fmt.Errorf("events[%d]: %w", i, err)
		}
		b.Events = append(b.Events, e)
	}
	return in, nil
}

func (e *Event) decode(in []byte) ([]byte, error) {
	var lora struct {
		id   int
		name string
	}
	lora.id = -1
	parentSeen := false
	e.Root = true
	kind, err := kindOf(in)
	if err != nil {
		return nil, err
	}
	e.Kind = kind
	fields := fieldsOf[kind]
	rest, err := eachField(in, func(index int, name string) string {
		switch {
		case index == 0:
			return tagField
		case index > 0 && index <= len(fields):
			return fields[index-1]
		}
		return name
	}, func(field string, in []byte) (rest []byte, err error) {
		if fields == nil {
			return msgp.Skip(in)
		}
		switch field {
		case "block_hashes":
			e.Hashes, rest, err = readHashes(in)
		case "parent_block_hash":
			parentSeen = true
			if e.Root = msgp.NextType(in) == msgp.NilType; e.Root {
				rest, err = msgp.ReadNilBytes(in)
			} else {
				e.Parent, rest, err = readHash(in)
			}
		case "token_ids":
			e.Tokens, rest, err = readTokens(in)
		case "block_size":
			e.BlockSize, rest, err = readSmall(in, 0)
		case "lora_id":
			lora.id, rest, err = readSmall(in, -1)
		case "lora_name":
			lora.name, rest, err = readName(in)
		case "medium":
			e.Medium, rest, err = readName(in)
		case "extra_keys":
			e.Extra, rest, err = readExtra(in)
		case "group_idx":
			e.Group, rest, err = readSmall(in, 0)
		default:
			rest, err = msgp.Skip(in)
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", field, err)
		}
		return rest, err
	})
	if err != nil {
		return nil, err
	}
	if e.Adapter = lora.name; lora.name == "" && lora.id >= 0 {
		e.Adapter = fmt.Sprintf("#%d", lora.id)
	}
	return rest, e.check(parentSeen)
}

// check rejects an event that no engine sends.
func (e *Event) check(parentSeen bool) error {
	if e.Kind != BlockStored {
		return nil
	}
	switch {
	case !parentSeen:
		return errors.New("parent_block_hash: missing")
	case e.BlockSize < 1 || e.BlockSize > maxBlockSize:
		return fmt.Errorf("block_size: must be from 1 to %d, got %d", maxBlockSize, e.BlockSize)
	case e.Extra != nil && len(e.Extra) != len(e.Hashes):
		return fmt.Errorf("extra_keys: must have an element for each of %d blocks, got %d", len(e.Hashes), len(e.Extra))
	case e.Tokens != nil && len(e.Tokens) < (len(e.Hashes)-1)*e.BlockSize:
		return fmt.Errorf("token_ids: %d blocks of %d tokens must have at least %d tokens, got %d", len(e.Hashes), e.BlockSize, (len(e.Hashes)-1)*e.BlockSize, len(e.Tokens))
	}
	return nil
}

// kindOf returns the kind of the event at the beginning of in.
func kindOf(in []byte) (kind Kind, err error) {
	_, err = eachField(in, func(index int, name string) string {
		if index == 0 {
			return tagField
		}
		return name
	}, func(field string, in []byte) ([]byte, error) {
		if field == tagField && msgp.NextType(in) == msgp.StrType {
			name, rest, err := msgp.ReadStringBytes(in)
			kind = kinds[name]
			return rest, err
		}
		return msgp.Skip(in)
	})
	return kind, err
}

// eachField calls read with each field of a structure in array or map form. The field's name is that
// which nameOf returns for its index in an array (and an empty name), or for its name in a map (and
// index -1).
func eachField(in []byte, nameOf func(index int, name string) string, read func(field string, in []byte) ([]byte, error)) ([]byte, error) {
	if msgp.NextType(in) == msgp.MapType {
		n, in, err := msgp.ReadMapHeaderBytes(in)
		if err != nil {
			return nil, err
		}
		for range n {
			var name string
			if name, in, err = readName(in); err != nil {
				return nil, fmt.Errorf("name of a field: %w", err)
			}
			if in, err = read(nameOf(-1, name), in); err != nil {
				return nil, err
			}
		}
		return in, nil
	}
	n, in, err := readLength(in)
	if err != nil {
		return nil, fmt.Errorf("structure: %w", err)
	}
	for i := range n {
		if in, err = read(nameOf(i, ""), in); err != nil {
			return nil, err
		}
	}
	return in, nil
}

// readLength reads the header of an array. Each element has at least one byte, so that a length above
// the remaining bytes is false, and nothing is allocated for it.
func readLength(in []byte) (int, []byte, error) {
	n, rest, err := msgp.ReadArrayHeaderBytes(in)
	if err == nil && uint64(n) > uint64(len(rest)) {
		err = errShort
	}
	return int(n), rest, err
}

// readFloat reads a number.
func readFloat(in []byte) (float64, []byte, error) {
	switch msgp.NextType(in) {
	case msgp.Float64Type, msgp.Float32Type:
		return msgp.ReadFloat64Bytes(in)
	}
	n, rest, err := msgp.ReadInt64Bytes(in)
	return float64(n), rest, err
}

// readSmall reads an integer that fits 32 bits; nil is null.
func readSmall(in []byte, null int) (int, []byte, error) {
	if msgp.NextType(in) == msgp.NilType {
		rest, err := msgp.ReadNilBytes(in)
		return null, rest, err
	}
	n, rest, err := msgp.ReadInt64Bytes(in)
	if err == nil && (n < math.MinInt32 || n > math.MaxInt32) {
		err = fmt.Errorf("%d does not fit 32 bits", n)
	}
	return int(n), rest, err
}

// readName reads a string; nil is empty.
func readName(in []byte) (string, []byte, error) {
	if msgp.NextType(in) == msgp.NilType {
		rest, err := msgp.ReadNilBytes(in)
		return "", rest, err
	}
	name, rest, err := msgp.ReadStringZC(in)
	if err == nil && len(name) > maxName {
		err = fmt.Errorf("a name has %d bytes, more than %d", len(name), maxName)
	}
	return string(name), rest, err
}

func readHashes(in []byte) ([]BlockHash, []byte, error) {
	n, in, err := readLength(in)
	if err != nil {
		return nil, nil, err
	}
	hashes := make([]BlockHash, 0, n)
	for range n {
		var h BlockHash
		if h, in, err = readHash(in); err != nil {
			return nil, nil, err
		}
		hashes = append(hashes, h)
	}
	return hashes, in, nil
}

// readHash reads an integer of 64 bits, with or without a sign, or a byte string.
func readHash(in []byte) (BlockHash, []byte, error) {
	switch msgp.NextType(in) {
	case msgp.BinType:
		b, rest, err := msgp.ReadBytesZC(in)
		return BlockHash(xxh3.Hash(b)), rest, err
	case msgp.StrType:
		b, rest, err := msgp.ReadStringZC(in)
		return BlockHash(xxh3.Hash(b)), rest, err
	case msgp.UintType:
		u, rest, err := msgp.ReadUint64Bytes(in)
		return BlockHash(u), rest, err
	}
	i, rest, err := msgp.ReadInt64Bytes(in)
	return BlockHash(uint64(i)), rest, err
}

// readTokens reads token ids. Elements that are not plain numbers, such as the pairs of tokens that
// speculative decoding uses, make the result nil.
func readTokens(in []byte) (tokens []uint32, rest []byte, err error) {
	n, in, err := readLength(in)
	if err != nil {
		return nil, nil, err
	}
	tokens = make([]uint32, 0, n)
	plain := true
	for range n {
		if t := msgp.NextType(in); t != msgp.IntType && t != msgp.UintType {
			plain = false
			if in, err = msgp.Skip(in); err != nil {
				return nil, nil, err
			}
			continue
		}
		var id int64
		if id, in, err = msgp.ReadInt64Bytes(in); err != nil {
			return nil, nil, err
		}
		if id < 0 || id > math.MaxUint32 {
			return nil, nil, fmt.Errorf("token %d does not fit 32 bits", id)
		}
		tokens = append(tokens, uint32(id))
	}
	if !plain {
		tokens = nil
	}
	return tokens, in, nil
}

// readExtra reads the extra keys of blocks as hashes of their encoding.
func readExtra(in []byte) (extra []uint64, rest []byte, err error) {
	if msgp.NextType(in) == msgp.NilType {
		rest, err = msgp.ReadNilBytes(in)
		return nil, rest, err
	}
	n, in, err := readLength(in)
	if err != nil {
		return nil, nil, err
	}
	for range n {
		isNil := msgp.NextType(in) == msgp.NilType
		after, err := msgp.Skip(in)
		if err != nil {
			return nil, nil, err
		}
		h := uint64(0)
		if !isNil {
			h = xxh3.Hash(in[:len(in)-len(after)])
		}
		extra, in = append(extra, h), after
	}
	return extra, in, nil
}

// sequenceOf returns the number in a frame: 8 bytes, big-endian.
func sequenceOf(frame []byte) (uint64, error) {
	if len(frame) != 8 {
		return 0, fmt.Errorf("a sequence number must have 8 bytes, got %d", len(frame))
	}
	return binary.BigEndian.Uint64(frame), nil
}
