package proxy

import (
	"bytes"
	"net/http"
	"strconv"
)

// The kills of a request are the engines that crashed while serving it.

// maxKills limits the number of kills that a peer reports. A request is stopped at two.
const maxKills = 16

// parseKills parses headerKills. It returns 0 if the header is missing or malformed.
func parseKills(text string) int {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return int(min(n, maxKills))
}

// killsOf returns the number of engines of a peer that crashed while serving the request, from its
// response header; 0 for the response of a replica.
func killsOf(h http.Header, p *peer) int {
	if p == nil {
		return 0
	}
	return parseKills(h.Get(headerKills))
}

// setKillsHeader sets headerKills in the response to a peer: the number of engines that crashed here.
func (x *exchange) setKillsHeader(h http.Header) {
	if x.from != "" && x.latestAction.kills > 0 {
		h.Set(headerKills, strconv.Itoa(x.latestAction.kills))
	}
}

// killsCommentPrefix starts the SSE comment that replaces headerKills in a stream whose header was
// already sent.
const killsCommentPrefix = ": skyserve-kills "

// killsComment returns this comment for a number of kills.
func killsComment(kills int) []byte {
	return []byte(killsCommentPrefix + strconv.Itoa(kills) + "\n\n")
}

// readKills reports whether an event is such a comment, which is hidden from the client. It parses the
// comment of a peer. The comment of an engine is ignored.
func (x *exchange) readKills(event []byte) bool {
	rest, ok := bytes.CutPrefix(event, []byte(killsCommentPrefix))
	if ok && x.current.peer != nil {
		x.peerKills = parseKills(string(bytes.TrimSpace(rest)))
	}
	return ok
}
