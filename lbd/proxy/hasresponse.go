package proxy

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// PathHasResponse is the path at which another balancer checks whether a replica of this one holds a stored
// response. It returns 204 if so, with the model that generated the response in headerModel, otherwise 404.
// Query parameters: id, and the tenant that owns the response.
const PathHasResponse = "/skyserve/v1/holds"

// ServeHasResponse serves PathHasResponse. A request that is not from a balancer of this service receives 401.
func (r *Runtime) ServeHasResponse(w http.ResponseWriter, req *http.Request) {
	if !peerAllowed(r.self.PeerToken, r.RequiresKeys(), req) {
		refused := r.errUnauthorized()
		refused.Message = "this path is for balancers of this service: send the peer token in the header " + headerPeerToken
		r.refuseRequest(w, req, refused)
		return
	}
	q := req.URL.Query()
	at, known := r.storedResponses.find(responseID{q.Get("tenant"), q.Get("id")})
	if !known || !r.servesItself(at) {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set(headerModel, at.model)
	w.WriteHeader(http.StatusNoContent)
}

// servesItself reports whether a response is at a replica of this balancer. Each balancer reports only its
// own replicas.
func (r *Runtime) servesItself(at storedAt) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.ranks[at.target]
	return k.replica != nil && k.cfg.URL == at.url
}

// askPeers queries all peers concurrently for the holder of a response. It returns the zero
// storedAt if no peer confirms in time.
func (r *Runtime) askPeers(ctx context.Context, response responseID) (found storedAt) {
	r.mu.Lock()
	peers := make([]*peer, 0, len(r.peers))
	for _, p := range r.peers {
		peers = append(peers, p)
	}
	r.mu.Unlock()
	slices.SortFunc(peers, func(a, b *peer) int { return strings.Compare(a.cfg.ID, b.cfg.ID) })
	ctx, cancel := context.WithTimeout(ctx, r.limits.LookupTimeout)
	defer cancel()
	var pending sync.WaitGroup
	var once sync.Once
	for _, p := range peers {
		pending.Go(func() {
			if model, holds := r.peerHolds(ctx, p, response); holds {
				once.Do(func() {
					found = storedAt{response: response, target: p.cfg.ID, url: p.cfg.URL, model: model}
					cancel() // the other results are not needed
				})
			}
		})
	}
	pending.Wait()
	return found
}

// peerHolds queries one peer. model is the model that generated the response, if the peer returns
// it.
func (r *Runtime) peerHolds(ctx context.Context, p *peer, response responseID) (model string, holds bool) {
	lookupReq := &http.Request{
		Method: http.MethodGet, Header: http.Header{}, Host: p.base.Host,
		URL: &url.URL{
			Scheme: p.base.Scheme, Host: p.base.Host, Path: strings.TrimSuffix(p.base.Path, "/") + PathHasResponse,
			RawQuery: url.Values{"id": {response.id}, "tenant": {response.tenant}}.Encode(),
		},
	}
	if r.self.PeerToken != "" {
		lookupReq.Header[headerPeerToken] = []string{r.self.PeerToken}
	}
	resp, err := p.transport.RoundTrip(lookupReq.WithContext(ctx))
	if err != nil {
		return "", false // a peer that does not respond cannot serve the response either
	}
	defer resp.Body.Close()
	discard(resp.Body)
	return resp.Header.Get(headerModel), resp.StatusCode == http.StatusNoContent
}
