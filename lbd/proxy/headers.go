package proxy

import (
	"net/http"
	"net/textproto"
	"strings"
)

// Headers of the public API and between balancers, in canonical form.
const (
	headerRequestID   = "X-Request-Id"
	headerSession     = "X-Session-Id"
	headerTier        = "X-Skyserve-Tier"
	headerRegion      = "X-Skyserve-Region"
	headerReplica     = "X-Skyserve-Replica"
	headerQueueMs     = "X-Skyserve-Queue-Ms"
	headerPrefixMatch = "X-Skyserve-Prefix-Match"
	headerDecision    = "X-Skyserve-Decision"

	headerHop       = "X-Skyserve-Hop"
	headerFrom      = "X-Skyserve-From"
	headerPeerToken = "X-Skyserve-Peer-Token"
	headerTenant    = "X-Skyserve-Tenant"
	headerBounce    = "X-Skyserve-Bounce"
	headerModel     = "X-Skyserve-Model"
	// headerSessionAge is how long ago the request's session began, in
	// milliseconds: the balancers' clocks are not compared.
	headerSessionAge = "X-Skyserve-Session-Age-Ms"
	// headerWait is how long, in milliseconds, the peer may hold the request: what
	// is left of what it may wait in all.
	headerWait = "X-Skyserve-Wait-Ms"

	// headerContinue, set to continueOff by a client, lets an answer whose replica
	// dies in the middle of it end in an error event.
	headerContinue = "X-Skyserve-Continue"
	// headerContinued tells a peer that the request's prompt holds the beginning of
	// its answer, which not every engine goes on with.
	headerContinued = "X-Skyserve-Continued"
	// headerCounts asks a peer for the usage so far with each event, where its engine
	// tells it: countsExact when the client is told how many tokens there are, else
	// countsAny.
	headerCounts = "X-Skyserve-Counts"

	// headerFingerprint is the fingerprint of a forwarded request. headerKills counts the
	// engines that died of it: on a request those before the peer, on an answer the peer's.
	headerFingerprint = "X-Skyserve-Fingerprint"
	headerKills       = "X-Skyserve-Kills"

	headerIdempotency = "Idempotency-Key"

	ownPrefix = "X-Skyserve-"

	continueOn, continueOff = "on", "off"
	countsExact, countsAny  = "exact", "any"
)

// hopByHop says whether a header concerns one connection only (RFC 9110,
// section 7.6.1), or is set anew on each.
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length", "Expect", "Host":
		return true
	}
	return false
}

// copyHeaders copies what may pass an intermediary: no header of one connection,
// none that Connection names, none of our own.
func copyHeaders(dst, src http.Header) {
	named := src["Connection"]
	for name, values := range src {
		if hopByHop(name) || strings.HasPrefix(name, ownPrefix) || (len(named) > 0 && namedIn(named, name)) {
			continue
		}
		dst[name] = values
	}
}

// namedIn says whether a Connection header lists name.
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
