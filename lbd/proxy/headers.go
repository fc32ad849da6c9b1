package proxy

import (
	"net/http"
	"net/textproto"
	"slices"
	"strings"
)

// Headers of the public API and between balancers, in canonical form.
const (
	headerRequestID   = "X-Request-Id"
	headerSession     = "X-Session-Id"
	headerTier        = "X-Skyserve-Tier"
	headerDeadline    = "X-Skyserve-Deadline"
	headerRegion      = "X-Skyserve-Region"
	headerReplica     = "X-Skyserve-Replica"
	headerQueueMs     = "X-Skyserve-Queue-Ms"
	headerPrefixMatch = "X-Skyserve-Prefix-Match"
	headerDecision    = "X-Skyserve-Decision"

	headerHop       = "X-Skyserve-Hop"
	headerFrom      = "X-Skyserve-From"
	headerPeerToken = "X-Skyserve-Peer-Token"
	headerTenant    = "X-Skyserve-Tenant"
	headerBounce    = "X-Skyserve-Bounce" // bounceUnplaced or bounceNoModel
	headerModel     = "X-Skyserve-Model"
	// headerSessionAge is the age of the request's session in milliseconds: clocks of balancers are
	// not compared.
	headerSessionAge = "X-Skyserve-Session-Age-Ms"
	// headerWait is the time in milliseconds for which the peer may queue the request: the remainder
	// of its maximum wait.
	headerWait = "X-Skyserve-Wait-Ms"

	// headerContinue, set to continueOff by a client, disables continuation: a response whose replica
	// fails midway ends in an error event.
	headerContinue = "X-Skyserve-Continue"
	// headerContinued marks a request whose prompt contains the start of its response. Not every
	// engine can continue it.
	headerContinued = "X-Skyserve-Continued"
	// headerCounts requests the usage so far in each event from a peer, if its engine reports it:
	// countsExact if the client receives the number of tokens, otherwise countsAny.
	headerCounts = "X-Skyserve-Counts"

	// headerFingerprint is the fingerprint of a forwarded request. headerKills is the number of
	// engines that crashed while serving it: in a request, before it was sent to the peer; in a
	// response, at the peer.
	headerFingerprint = "X-Skyserve-Fingerprint"
	headerKills       = "X-Skyserve-Kills"

	headerIdempotency = "Idempotency-Key"

	// headerAPIKey contains the key of clients of Anthropic's Messages API, and headerMessagesID the
	// request id in that API's responses.
	headerAPIKey     = "X-Api-Key"
	headerMessagesID = "Request-Id"

	ownPrefix  = "X-Skyserve-"
	corsPrefix = "Access-Control-"

	continueOn, continueOff = "on", "off"
	countsExact, countsAny  = "exact", "any"
)

// Reasons for which a balancer returns a request to the peer that forwarded it.
const (
	bounceUnplaced = "1"         // no replica can serve it now
	bounceNoModel  = codeNoModel // its model or adapter does not exist here
)

// sessionHeaders are headers in which coding agents name their session, in their order of precedence,
// in canonical form: Claude Code's, OpenCode's and Crush's, Codex's, and that of older versions of
// Codex.
var sessionHeaders = [...]string{"X-Claude-Code-Session-Id", "X-Session-Affinity", "Session-Id", "Session_id"}

// namedSession returns the session that a coding agent names in a header of its own, if any.
func namedSession(h http.Header) string {
	for _, name := range sessionHeaders {
		if values := h[name]; len(values) > 0 && values[0] != "" {
			return values[0]
		}
	}
	return ""
}

// hopByHop reports whether a header applies to a single connection (RFC 9110, section 7.6.1), or is
// set for each one.
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length", "Expect", "Host":
		return true
	}
	return false
}

// copyHeaders copies the headers that an intermediary may forward: no hop-by-hop header, no header
// that Connection lists, no header of skyserve, and no permission for web pages, which only the
// balancer grants.
func copyHeaders(dst, src http.Header) {
	named := src["Connection"]
	for name, values := range src {
		if hopByHop(name) || strings.HasPrefix(name, ownPrefix) || strings.HasPrefix(name, corsPrefix) || (len(named) > 0 && namedIn(named, name)) {
			continue
		}
		// originRules.serve has set Vary. A peer has set it too, so it is not added twice.
		if prior := dst[name]; len(prior) > 0 && name == "Vary" && !slices.Equal(prior, values[:min(len(prior), len(values))]) {
			values = slices.Concat(prior, values)
		}
		dst[name] = values
	}
}

// namedIn reports whether a Connection header lists name.
func namedIn(connection []string, name string) bool {
	for _, line := range connection {
		for field := range strings.SplitSeq(line, ",") {
			if textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(field)) == name {
				return true
			}
		}
	}
	return false
}
