package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/tinylib/msgp/msgp"

	"skyserve/internal/sim/engine"
	"skyserve/internal/zmtp"
)

// Cache events, as vLLM and SGLang publish them with --kv-events-config: a PUB socket for each
// data-parallel rank sends three frames (topic, number of the message, msgpack), and a ROUTER socket
// sends the messages from a number on again. Sources: vllm/distributed/kv_events.py and
// sglang/srt/disaggregation/kv_events.py, read in November 2026. In vLLM's form structures are maps,
// in SGLang's they are arrays, with an event for each block.

// The engines' constants.
const (
	cacheTopic = "kv-events"
	// cacheBlockTokens is vLLM's default block size. SGLang's is 1 by default; 16 is a usual --page-size.
	cacheBlockTokens = 16
	// ReplayPortOffset is the distance from the port of a rank's events to that of their replays.
	ReplayPortOffset = 100
	// Messages kept for a replay: the engines' default, and a bound on their memory.
	maxReplayMessages = 10_000
	maxReplayBytes    = 64 << 20
)

// CacheListeners are the listeners of one rank's cache events.
type CacheListeners struct{ Events, Replays net.Listener }

// ListenCacheEvents listens for the cache events of an engine: rank n at the port of address plus n, and
// for replays at 100 above that. With port 0 all ports are free ones.
func ListenCacheEvents(address string, ranks int) (all []CacheListeners, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.Atoi(text)
	if err != nil || port < 0 || port+ReplayPortOffset+ranks > 1<<16 {
		return nil, fmt.Errorf("port must be 0 or leave %d ports above it, got %q", ReplayPortOffset+ranks, text)
	}
	defer func() {
		if err != nil {
			closeCacheListeners(all)
			all = nil
		}
	}()
	listen := func(offset int) (net.Listener, error) {
		p := port
		if p != 0 {
			p += offset
		}
		return net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(p)))
	}
	for rank := range ranks {
		var l CacheListeners
		if l.Events, err = listen(rank); err != nil {
			return all, err
		}
		all = append(all, l)
		if all[rank].Replays, err = listen(ReplayPortOffset + rank); err != nil {
			return all, err
		}
	}
	return all, nil
}

func closeCacheListeners(all []CacheListeners) {
	for _, l := range all {
		for _, x := range []net.Listener{l.Events, l.Replays} {
			if x != nil {
				_ = x.Close()
			}
		}
	}
}

// cachePublisher publishes the cache events of one rank.
type cachePublisher struct {
	rank   int
	flavor Flavor
	pub    *zmtp.Publisher

	mu    sync.Mutex
	seq   uint64
	kept  []sentMessage // for replays, oldest first
	bytes int           // of kept
}

type sentMessage struct{ seq, payload []byte }

// startCacheEvents starts the publishers of all ranks. They end with ctx; stopped is done when they have.
func startCacheEvents(ctx context.Context, listeners []CacheListeners, flavor Flavor, stopped *sync.WaitGroup) []*cachePublisher {
	var all []*cachePublisher
	for rank, l := range listeners {
		p := &cachePublisher{rank: rank, flavor: flavor, pub: zmtp.NewPublisher()}
		all = append(all, p)
		stopped.Go(func() { p.pub.Serve(ctx, l.Events) })
		stopped.Go(func() { zmtp.ServeRouter(ctx, l.Replays, p.replay) })
	}
	return all
}

// publish publishes the changes of one step as a message.
func (p *cachePublisher) publish(now time.Time, changes []engine.CacheChange) {
	if len(changes) == 0 {
		return
	}
	payload := p.encode(now, changes)
	p.mu.Lock()
	defer p.mu.Unlock()
	m := sentMessage{binary.BigEndian.AppendUint64(nil, p.seq), payload}
	p.seq++
	p.kept, p.bytes = append(p.kept, m), p.bytes+len(payload)
	for len(p.kept) > 1 && (len(p.kept) > maxReplayMessages || p.bytes > maxReplayBytes) {
		p.bytes -= len(p.kept[0].payload)
		p.kept = p.kept[1:]
	}
	p.pub.Publish([]byte(cacheTopic), m.seq, payload)
}

// endOfReplay is the number -1.
var endOfReplay = []byte{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}

// replay answers a request: an empty frame and the number of the first message.
func (p *cachePublisher) replay(frames [][]byte, send func(frames ...[]byte) error) error {
	if len(frames) != 2 || len(frames[1]) != 8 {
		return errors.New("invalid request for a replay")
	}
	from := binary.BigEndian.Uint64(frames[1])
	p.mu.Lock()
	kept := p.kept
	p.mu.Unlock()
	for _, m := range kept {
		if binary.BigEndian.Uint64(m.seq) >= from {
			if err := send(nil, m.seq, m.payload); err != nil {
				return err
			}
		}
	}
	return send(nil, endOfReplay, nil)
}

func (p *cachePublisher) encode(now time.Time, changes []engine.CacheChange) []byte {
	seconds := float64(now.UnixNano()) / 1e9
	if p.flavor == FlavorSGLang {
		return encodeSGLang(seconds, p.rank, changes)
	}
	return encodeVLLM(seconds, p.rank, changes)
}

// encodeVLLM encodes structures as maps without the fields that have their defaults.
func encodeVLLM(seconds float64, rank int, changes []engine.CacheChange) []byte {
	b := msgp.AppendMapHeader(nil, 3)
	b = msgp.AppendFloat64(msgp.AppendString(b, "ts"), seconds)
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "events"), uint32(len(changes)))
	for _, c := range changes {
		if !c.Stored {
			b = msgp.AppendMapHeader(b, 3)
			b = msgp.AppendString(msgp.AppendString(b, "type"), "BlockRemoved")
			b = appendHashes(msgp.AppendString(b, "block_hashes"), c.Hashes)
			b = msgp.AppendString(msgp.AppendString(b, "medium"), "GPU")
			continue
		}
		b = msgp.AppendMapHeader(b, 8)
		b = msgp.AppendString(msgp.AppendString(b, "type"), "BlockStored")
		b = appendHashes(msgp.AppendString(b, "block_hashes"), c.Hashes)
		b = appendParent(msgp.AppendString(b, "parent_block_hash"), &c)
		b = appendTokens(msgp.AppendString(b, "token_ids"), c.Tokens)
		b = msgp.AppendInt(msgp.AppendString(b, "block_size"), cacheBlockTokens)
		b = msgp.AppendNil(msgp.AppendString(b, "lora_id"))
		b = msgp.AppendString(msgp.AppendString(b, "medium"), "GPU")
		b = msgp.AppendNil(msgp.AppendString(b, "lora_name"))
	}
	return msgp.AppendInt(msgp.AppendString(b, "data_parallel_rank"), rank)
}

// encodeSGLang encodes structures as arrays, with an event for each block and signed hashes.
func encodeSGLang(seconds float64, rank int, changes []engine.CacheChange) []byte {
	blocks := 0
	for _, c := range changes {
		blocks += len(c.Hashes)
	}
	b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), seconds)
	b = msgp.AppendArrayHeader(b, uint32(blocks))
	for _, c := range changes {
		for i, h := range c.Hashes {
			if !c.Stored {
				b = msgp.AppendString(msgp.AppendArrayHeader(b, 3), "BlockRemoved")
				b = msgp.AppendInt64(msgp.AppendArrayHeader(b, 1), int64(h))
				b = msgp.AppendString(b, "GPU")
				continue
			}
			b = msgp.AppendString(msgp.AppendArrayHeader(b, 7), "BlockStored")
			b = msgp.AppendInt64(msgp.AppendArrayHeader(b, 1), int64(h))
			switch {
			case i > 0:
				b = msgp.AppendInt64(b, int64(c.Hashes[i-1]))
			case c.Root:
				b = msgp.AppendNil(b)
			default:
				b = msgp.AppendInt64(b, int64(c.Parent))
			}
			b = appendTokens(b, c.Tokens[i*cacheBlockTokens:(i+1)*cacheBlockTokens])
			b = msgp.AppendNil(msgp.AppendInt(b, cacheBlockTokens))
			b = msgp.AppendString(b, "GPU")
		}
	}
	return msgp.AppendInt(b, rank)
}

func appendHashes(b []byte, hashes []uint64) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(hashes)))
	for _, h := range hashes {
		b = msgp.AppendUint64(b, h)
	}
	return b
}

func appendParent(b []byte, c *engine.CacheChange) []byte {
	if c.Root {
		return msgp.AppendNil(b)
	}
	return msgp.AppendUint64(b, c.Parent)
}

func appendTokens(b []byte, tokens []engine.Token) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(tokens)))
	for _, t := range tokens {
		b = msgp.AppendUint32(b, uint32(t))
	}
	return b
}
