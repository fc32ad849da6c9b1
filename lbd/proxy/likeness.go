package proxy

import "bytes"

// likeness is what the chunks of one stream have in common: engines print all of
// an answer's in one way, so that a chunk which differs from the one before in its
// text alone needs no second reading of the rest. Its zero value is like nothing.
type likeness struct {
	around []byte // of a chunk: what stands before its text's first quote, and behind the last
	before int    // how much of that stands before it
	plain  bool   // the text is a completion's, and not a chat's
}

// learn takes a chunk for the pattern, in which quoted, a part of it, is the text.
func (l *likeness) learn(chunk, quoted []byte, plain bool) {
	from := cap(chunk) - cap(quoted) // where a part of it begins
	if from < 0 || from+len(quoted) > len(chunk) || &chunk[from] != &quoted[0] {
		return // it is no part of it
	}
	l.around = append(append(l.around[:0], chunk[:from]...), chunk[from+len(quoted):]...)
	l.before, l.plain = from, plain
}

// text is the text of a chunk like those before, quoted; nil when it is another
// kind of chunk, or one without text.
func (l *likeness) text(chunk []byte) []byte {
	const empty = len(`""`)
	to := len(chunk) - (len(l.around) - l.before)
	if l.around == nil || to <= l.before+empty || chunk[l.before] != '"' ||
		!bytes.Equal(chunk[:l.before], l.around[:l.before]) || !bytes.Equal(chunk[to:], l.around[l.before:]) {
		return nil
	}
	quoted := chunk[l.before:to]
	in := cursor{data: quoted}
	if in.str() != nil || in.at != len(quoted) {
		return nil
	}
	return quoted
}
