package cacheevents

import (
	"fmt"

	"github.com/zeebo/xxh3"

	"skyserve/internal/printable"
)

// sequence follows the numbers of an engine's messages, which increase by one.
type sequence struct {
	started bool
	last    uint64 // number of the last message
	hash    uint64 // of its payload, which tells engines apart
}

// placement is the position of a message in the sequence.
type placement uint8

const (
	next      placement = iota // the expected message, or the first one
	duplicate                  // a message from before the last one, or the last one again
	gap                        // messages before it are missing
)

// place returns where a message belongs. It changes nothing.
func (s *sequence) place(seq uint64) placement {
	switch {
	case !s.started || seq == s.last+1:
		return next
	case seq <= s.last:
		return duplicate
	}
	return gap
}

// isLast reports whether a message is the last one. A message with its number and another payload
// comes from another process.
func (s *sequence) isLast(seq uint64, payload []byte) bool {
	return s.started && seq == s.last && xxh3.Hash(payload) == s.hash
}

// accept makes a message the last one.
func (s *sequence) accept(seq uint64, payload []byte) {
	*s = sequence{started: true, last: seq, hash: xxh3.Hash(payload)}
}

// missing describes the messages between the last one and seq.
func (s *sequence) missing(seq uint64) string {
	return fmt.Sprintf("%s lost before message %d", printable.Count(seq-s.last-1, "message"), seq)
}
