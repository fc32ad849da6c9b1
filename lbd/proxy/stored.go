package proxy

import (
	"container/list"
	"context"
	"net/http"
	"sync"

	"skyserve/lbd/openai"
)

// maxResponseID is the maximum length of a response id that is remembered; ids of engines have about
// 40 bytes.
const maxResponseID = 256

// errNoHolder rejects a request that continues from a response that no replica has.
var errNoHolder = openai.Error{
	Status: http.StatusBadRequest, Kind: openai.TypeInvalid, Param: "previous_response_id", Code: "previous_response_not_found",
	Message: "previous_response_id: no replica has this response: send the whole conversation as input",
}

// responses contains the holder, a replica or a peer, of each stored response (/v1/responses): each
// engine stores its own responses. The least recently used entry is removed first.
type responses struct {
	mu     sync.Mutex
	max    int
	recent list.List // of storedAt, the latest used first
	byID   map[responseID]*list.Element
}

// responseID identifies a response. Responses of different tenants are distinct, because engines do
// not separate tenants.
type responseID struct{ tenant, id string }

// storedAt is the location of a response: the replica (or its rank) or peer with this id, as long as
// it has this URL. Another process with the same id does not have the response.
type storedAt struct {
	response    responseID
	target, url string
	model       string // the model that generated it; empty if unknown
}

func newResponses(limit int) *responses {
	return &responses{max: limit, byID: map[responseID]*list.Element{}}
}

// putResponse stores the location of a response.
func (s *responses) putResponse(at storedAt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.byID[at.response]; e != nil {
		e.Value = at
		s.recent.MoveToFront(e)
		return
	}
	s.byID[at.response] = s.recent.PushFront(at)
	if s.recent.Len() > s.max {
		oldest := s.recent.Back()
		delete(s.byID, s.recent.Remove(oldest).(storedAt).response)
	}
}

// dropResponse removes a response.
func (s *responses) dropResponse(response responseID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.byID[response]; e != nil {
		s.recent.Remove(e)
		delete(s.byID, response)
	}
}

// find returns the location of a response.
func (s *responses) find(response responseID) (at storedAt, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.byID[response]
	if e == nil {
		return storedAt{}, false
	}
	s.recent.MoveToFront(e)
	return e.Value.(storedAt), true
}

// holderOf returns where the response is stored that a call continues from; no target if the call starts
// a new conversation. For a client's request, it looks up an unknown response at the peers:
// the client may have used another region or balancer before.
func (r *Runtime) holderOf(ctx context.Context, c *openai.Call, o *sender) (at storedAt, refused *openai.Error) {
	id, given, refused := c.PreviousResponse()
	if !given || refused != nil {
		return storedAt{}, refused
	}
	response := responseID{o.tenant, id}
	if at, known := r.storedResponses.find(response); known && r.urlOf(at.target) == at.url {
		return at, nil
	}
	if o.from == "" && len(response.id) <= maxResponseID && r.forwards() {
		at, refused := r.locateResponse(ctx, response)
		if refused != nil || at.target != "" {
			return at, refused
		}
	}
	e := errNoHolder
	return storedAt{}, &e
}

// urlOf returns the URL of a replica, a rank or a peer; empty if the id is unknown.
func (r *Runtime) urlOf(target string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := r.ranks[target]; k.replica != nil {
		return k.cfg.URL
	}
	if p := r.peers[target]; p != nil {
		return p.cfg.URL
	}
	return ""
}

// rememberHolder stores the holder of the current response. It is called before the client has the end of
// the response, because the next request may follow immediately.
func (x *exchange) rememberHolder() {
	if !x.endpoint.Stored {
		return
	}
	id, ok := x.answer.TakeID(maxResponseID)
	if !ok {
		return
	}
	at := storedAt{response: responseID{x.tenant, id}, target: x.current.target, model: x.model}
	switch {
	case x.current.rank.replica != nil:
		at.url = x.current.rank.cfg.URL
	case x.current.peer != nil:
		at.url = x.current.peer.cfg.URL
	}
	x.rt.storedResponses.putResponse(at)
	x.rt.lookups.dropMiss(at.response)
}
