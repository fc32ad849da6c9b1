package proxy

import (
	"net/http"
	"strconv"
)

// markForwarded sets the headers that tell a peer what the request is and which hops it has made.
func (x *exchange) markForwarded(h http.Header) {
	r := x.rt
	h[headerHop] = []string{string(x.current.hop)}
	h[headerFrom] = []string{r.self.ID}
	h[headerTier] = []string{string(x.tier)}
	h[headerSession] = []string{x.session}
	if r.self.PeerToken != "" {
		h[headerPeerToken] = []string{r.self.PeerToken}
	}
	if x.tenant != "" {
		h[headerTenant] = []string{x.tenant}
	}
	h[headerFingerprint] = []string{strconv.FormatUint(x.fingerprint, 16)}
	if x.current.kills > 0 {
		h[headerKills] = []string{strconv.Itoa(x.current.kills)}
	}
	if x.continueOff {
		h[headerContinue] = []string{continueOff}
	}
	if x.isContinuation() {
		h[headerContinued] = []string{"1"}
	}
	if x.usageSoFarRequested {
		h[headerCounts] = []string{countsAny}
		if x.showsUsage {
			h[headerCounts] = []string{countsExact}
		}
	}
	if ms := x.current.wait.Milliseconds(); ms > 0 {
		h[headerWait] = []string{strconv.FormatInt(ms, 10)}
	}
	if ms := x.current.sessionAge.Milliseconds(); ms > 0 {
		h[headerSessionAge] = []string{strconv.FormatInt(ms, 10)}
	}
}

// setResponseHeaders sets the balancer's own headers on a response, except those that would reveal cached
// prompts to a client without access to them. If a peer served the request, its headers name the replica and the
// prefix match, and the queue times are summed.
func (x *exchange) setResponseHeaders(h http.Header, from http.Header) {
	region, replica := string(x.rt.self.Region), x.current.target
	d, match := x.current.decision, 0.0
	queued := millis(d.Waited)
	if d.PromptBytes > 0 {
		match = float64(d.MatchBytes) / float64(d.PromptBytes)
	}
	if x.current.rank.replica != nil {
		region = string(x.current.rank.cfg.Region)
	}
	if x.current.peer != nil {
		region, replica = from.Get(headerRegion), from.Get(headerReplica)
		match, _ = strconv.ParseFloat(from.Get(headerPrefixMatch), 64)
		theirs, _ := strconv.ParseFloat(from.Get(headerQueueMs), 64)
		queued += theirs
	}
	why := d.Policy + ":" + d.Reason
	if x.fellBack() {
		why = "fallback:" + x.fallback.reason
	}
	names := [...]string{headerRequestID, headerRegion, headerReplica, headerQueueMs, headerDecision, headerPrefixMatch}
	values := &[len(names)]string{
		x.inFlight.id, region, replica, strconv.FormatFloat(queued, 'f', 1, 64), why, strconv.FormatFloat(match, 'f', 3, 64),
	}
	if x.split != "" {
		h[headerModel] = []string{x.placedModel()}
	}
	shown := names[:]
	if x.hidesCache {
		shown = names[:len(names)-1]
		if !x.fellBack() && x.rt.sharePrefixes.Load() {
			values[len(shown)-1] = d.Policy // the reason could reveal a match with another tenant's prompt
		}
	}
	for i, name := range shown {
		h[name] = values[i : i+1 : i+1] // one allocation for all values
	}
	if x.endpoint.Messages {
		h[headerMessagesID] = h[headerRequestID]
	}
}
