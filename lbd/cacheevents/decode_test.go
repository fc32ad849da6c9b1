package cacheevents

import (
	"reflect"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"
	"github.com/zeebo/xxh3"
)

// list and fields are the two forms of a structure; null is None.
type (
	list   []any
	fields []any // name, value, name, value, ...
)

var null any

// pack encodes a value as msgspec does: integers in their shortest form, bytes as bin.
func pack(v any) []byte { return appendValue(nil, v) }

func appendValue(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return msgp.AppendNil(b)
	case list:
		b = msgp.AppendArrayHeader(b, uint32(len(v)))
		for _, e := range v {
			b = appendValue(b, e)
		}
	case fields:
		b = msgp.AppendMapHeader(b, uint32(len(v)/2))
		for _, e := range v {
			b = appendValue(b, e)
		}
	case int:
		return msgp.AppendInt(b, v)
	case uint64:
		return msgp.AppendUint64(b, v)
	case float64:
		return msgp.AppendFloat64(b, v)
	case string:
		return msgp.AppendString(b, v)
	case []byte:
		return msgp.AppendBytes(b, v)
	default:
		panic(reflect.TypeOf(v).String())
	}
	return b
}

// Messages in the forms that the engines' sources define.
func TestDecodeMessagesOfEngines(t *testing.T) {
	stored := Event{Kind: BlockStored, Hashes: []BlockHash{11, 12}, Parent: 10, Tokens: []uint32{1, 2, 3, 4}, BlockSize: 2}
	root := stored
	root.Parent, root.Root = 0, true
	negative := stored
	negative.Hashes, negative.Parent = []BlockHash{1<<64 - 5, 1 << 63}, BlockHash(1<<64-1)
	inBytes := stored
	inBytes.Hashes, inBytes.Parent = []BlockHash{BlockHash(xxh3.Hash([]byte("h1"))), BlockHash(xxh3.Hash([]byte("h2")))}, BlockHash(xxh3.Hash([]byte("h0")))
	adapter := stored
	adapter.Adapter, adapter.Medium = "sql", "GPU"
	numbered := stored
	numbered.Adapter = "#3"
	salted := root
	salted.Extra, salted.Group = []uint64{xxh3.Hash(pack(list{"salt"})), 0}, 1
	pairs := stored
	pairs.Tokens = nil
	for name, c := range map[string]struct {
		message any
		want    Batch
	}{
		"first version of both": {
			list{12.5, list{list{"BlockStored", list{11, 12}, 10, list{1, 2, 3, 4}, 2, null}, list{"BlockRemoved", list{11}}, list{"AllBlocksCleared"}}},
			Batch{Seconds: 12.5, Rank: -1, Events: []Event{stored, {Kind: BlockRemoved, Hashes: []BlockHash{11}, Root: true}, {Kind: AllBlocksCleared, Root: true}}},
		},
		"vLLM with a rank and a medium": {
			list{1.0, list{list{"BlockStored", list{11, 12}, null, list{1, 2, 3, 4}, 2, null, "GPU"}}, 3},
			Batch{Seconds: 1, Rank: 3, Events: []Event{func() Event { e := root; e.Medium = "GPU"; return e }()}},
		},
		"vLLM with byte hashes": {
			list{1.0, list{list{"BlockStored", list{[]byte("h1"), []byte("h2")}, []byte("h0"), list{1, 2, 3, 4}, 2, null}}},
			Batch{Seconds: 1, Rank: -1, Events: []Event{inBytes}},
		},
		"vLLM as maps": {
			fields{"ts", 2.0, "events", list{
				fields{"type", "BlockStored", "block_hashes", list{11, 12}, "parent_block_hash", 10, "token_ids", list{1, 2, 3, 4}, "block_size", 2, "lora_id", 7, "medium", "GPU", "lora_name", "sql"},
				fields{"type", "BlockRemoved", "block_hashes", list{12}, "medium", "CPU", "group_idx", 2},
				fields{"type", "AllBlocksCleared"},
			}, "data_parallel_rank", 1},
			Batch{Seconds: 2, Rank: 1, Events: []Event{adapter, {Kind: BlockRemoved, Hashes: []BlockHash{12}, Medium: "CPU", Group: 2, Root: true}, {Kind: AllBlocksCleared, Root: true}}},
		},
		"vLLM as a list of maps": {
			list{2.0, list{fields{"type", "BlockRemoved", "block_hashes", list{12}, "medium", null}}, 0},
			Batch{Seconds: 2, Rank: 0, Events: []Event{{Kind: BlockRemoved, Hashes: []BlockHash{12}, Root: true}}},
		},
		"extra keys and groups": {
			list{2.0, list{list{"BlockStored", list{11, 12}, null, list{1, 2, 3, 4}, 2, null, null, null, list{list{"salt"}, null}, 1, "full_attention", null}}},
			Batch{Seconds: 2, Rank: -1, Events: []Event{salted}},
		},
		"SGLang with signed hashes and attn_dp_rank": {
			list{3, list{list{"BlockStored", list{-5, uint64(1 << 63)}, -1, list{1, 2, 3, 4}, 2, null}}, 2},
			Batch{Seconds: 3, Rank: 2, Events: []Event{negative}},
		},
		"LoRA by number":   {list{1.0, list{list{"BlockStored", list{11, 12}, 10, list{1, 2, 3, 4}, 2, 3}}}, Batch{Seconds: 1, Rank: -1, Events: []Event{numbered}}},
		"pairs of tokens":  {list{1.0, list{list{"BlockStored", list{11, 12}, 10, list{list{1, 2}, list{2, 3}}, 2, null}}}, Batch{Seconds: 1, Rank: -1, Events: []Event{pairs}}},
		"later fields":     {list{1.0, list{list{"BlockRemoved", list{11}, null, null, "new", list{1}}}, null, "new"}, Batch{Seconds: 1, Rank: -1, Events: []Event{{Kind: BlockRemoved, Hashes: []BlockHash{11}, Root: true}}}},
		"an unknown event": {list{1.0, list{list{"BlockMoved", list{11}, "somewhere"}}}, Batch{Seconds: 1, Rank: -1, Events: []Event{{Root: true}}}},
		"a partial block":  {list{1.0, list{list{"BlockStored", list{11, 12}, 10, list{1, 2}, 2, null}}}, Batch{Seconds: 1, Rank: -1, Events: []Event{{Kind: BlockStored, Hashes: []BlockHash{11, 12}, Parent: 10, Tokens: []uint32{1, 2}, BlockSize: 2}}}},
		"no events":        {list{1.0, list{}}, Batch{Seconds: 1, Rank: -1}},
	} {
		got, err := Decode(pack(c.message))
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v\nwant %+v", name, got, err, c.want)
		}
	}
}

func TestDecodeRejects(t *testing.T) {
	stored := func(hashes, tokens list, size any) list {
		return list{1.0, list{list{"BlockStored", hashes, null, tokens, size, null}}}
	}
	for name, c := range map[string]struct {
		message []byte
		want    string
	}{
		"nothing":          {nil, "0 bytes"},
		"a number":         {pack(5), "structure"},
		"no events":        {pack(list{1.0}), "has no events"},
		"false length":     {[]byte{0x92, 0x01, 0xdd, 0xff, 0xff, 0xff, 0xff}, "events: the message ends early"},
		"a block size":     {pack(stored(list{1}, list{1}, 0)), "events[0]: block_size: must be from 1 to 65536, got 0"},
		"few tokens":       {pack(stored(list{1, 2, 3}, list{1, 2}, 2)), "token_ids: 3 blocks of 2 tokens must have at least 4 tokens, got 2"},
		"no parent":        {pack(list{1.0, list{list{"BlockStored", list{1}}}}), "parent_block_hash: missing"},
		"a negative token": {pack(stored(list{1}, list{-1}, 1)), "token -1 does not fit"},
		"a text":           {pack(stored(list{1}, list{1}, "x")), "block_size"},
		"extra keys":       {pack(list{1.0, list{list{"BlockStored", list{1, 2}, null, list{1, 2}, 1, null, null, null, list{null}}}}), "extra_keys: must have an element for each of 2 blocks, got 1"},
		"half":             {pack(stored(list{1}, list{1}, 1))[:20], "decoding"},
	} {
		if _, err := Decode(c.message); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(pack(list{12.5, list{list{"BlockStored", list{11, 12}, 10, list{1, 2, 3, 4}, 2, null}, list{"BlockRemoved", list{11}}, list{"AllBlocksCleared"}}}))
	f.Add(pack(fields{"ts", 2.0, "events", list{fields{"type", "BlockStored", "block_hashes", list{11, 12}, "parent_block_hash", 10, "token_ids", list{1, 2, 3, 4}, "block_size", 2}}}))
	f.Fuzz(func(t *testing.T, message []byte) {
		b, err := Decode(message)
		if err != nil {
			return
		}
		n := 0
		for _, e := range b.Events {
			n += 1 + len(e.Hashes) + len(e.Tokens)
			if e.Kind == BlockStored && (e.BlockSize < 1 || e.Tokens != nil && len(e.Tokens) < (len(e.Hashes)-1)*e.BlockSize) {
				t.Fatalf("accepted %+v", e)
			}
		}
		if n > len(message) {
			t.Fatalf("%d elements from %d bytes", n, len(message))
		}
	})
}
