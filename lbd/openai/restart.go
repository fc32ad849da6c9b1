package openai

import "bytes"

// The text at the beginning of an answer that is compared with a continuation, in bytes. A shorter
// text says too little.
const (
	minCompared = 12
	maxCompared = 24
)

// restartGuard detects that a target began the answer anew instead of continuing it: its text repeats
// the beginning of the text that the client has. The events are withheld while that is possible, which
// is rarely longer than the first one.
type restartGuard struct {
	beginning []byte // of the text so far; nil = nothing is compared
	matched   int
	held      [][]byte
	one       [1][]byte // avoids an allocation per event
}

// newRestartGuard compares with a JSON-encoded text.
func newRestartGuard(soFar []byte) restartGuard {
	plain := bytes.TrimSpace(decoded(soFar))
	beginning := plain[:min(len(plain), maxCompared)]
	if len(beginning) < minCompared || bytes.Contains(plain[1:], beginning) { // such a text repeats itself
		return restartGuard{}
	}
	return restartGuard{beginning: beginning}
}

// admit returns the events that can be forwarded now: none while event may begin a new answer.
// restarted: the target has begun a new answer. The result is valid until the next call.
func (g *restartGuard) admit(event []byte) (events [][]byte, restarted bool) {
	g.one[0] = event
	if g.beginning == nil {
		return g.one[:], false
	}
	piece, isText := textOf(EventData(event))
	if isText && g.matchPiece(piece) {
		if g.matched < len(g.beginning) {
			g.held = append(g.held, bytes.Clone(event))
			return nil, false
		}
		g.held = nil
		return nil, true
	}
	events = append(g.held, event)
	*g = restartGuard{}
	return events, false
}

// matchPiece reports whether the text including this piece equals the beginning, as far as it goes.
func (g *restartGuard) matchPiece(piece []byte) bool {
	if g.matched == 0 {
		piece = bytes.TrimLeft(piece, " \t\r\n")
	}
	n := min(len(piece), len(g.beginning)-g.matched)
	if !bytes.Equal(piece[:n], g.beginning[g.matched:g.matched+n]) {
		return false
	}
	g.matched += n
	return true
}

// textOf returns the text of a chunk; isText is false if the chunk contains anything else that matters,
// such as the end of the answer.
func textOf(data []byte) (plain []byte, isText bool) {
	if data == nil {
		return nil, true // a comment
	}
	var a Answer
	t := Transcript{RemainingBytes: len(data)}
	defer t.Release()
	a.Transcript = &t
	if f := a.Event(data); f.UsageOnly || a.Done || a.Failed || t.Lost() {
		return nil, false
	}
	return decoded(t.Text()), true
}
