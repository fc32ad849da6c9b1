package proxy

import (
	"bytes"
	"net/http"
	"strconv"
)

// maxKills bounds what a peer may say of deaths: a request is stopped at its second.
const maxKills = 16

// parseKills reads headerKills: 0 when it is missing or malformed.
func parseKills(text string) int {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return int(min(n, maxKills))
}

// killsOf is how many engines of a peer died of the request that it answers; 0 where
// the answer is a replica's.
func killsOf(h http.Header, p *peer) int {
	if p == nil {
		return 0
	}
	return parseKills(h.Get(headerKills))
}

// markKills tells the peer that forwarded the request how many engines died of it here.
func (x *exchange) markKills(h http.Header) {
	if x.from != "" && x.told.kills > 0 {
		h.Set(headerKills, strconv.Itoa(x.told.kills))
	}
}

// markOfKills begins the comment that tells a peer, in a stream whose header has gone,
// what headerKills tells it else.
const markOfKills = ": skyserve-kills "

// killsMark is that comment.
func killsMark(kills int) []byte {
	return []byte(markOfKills + strconv.Itoa(kills) + "\n\n")
}

// readKills reads such a comment, and says whether an event is one: no client shall see
// it. What an engine says of the kind is not heard.
func (x *exchange) readKills(event []byte) bool {
	rest, ok := bytes.CutPrefix(event, []byte(markOfKills))
	if ok && x.sent.peer != nil {
		x.peerKills = parseKills(string(bytes.TrimSpace(rest)))
	}
	return ok
}
