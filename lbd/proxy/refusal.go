package proxy

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"

	"skyserve/lbd/core"
)

// mostRefusal bounds what is kept of a refusal: engines' are a few hundred bytes.
const mostRefusal = 64 << 10

// refusal is what a target answered to a request that another may serve. Where every
// target refuses it, the client gets the last one's.
type refusal struct {
	status int
	header http.Header
	body   []byte
}

// takeRefusal reads a refusal; its body is closed by whoever opened it.
func takeRefusal(resp *http.Response) *refusal {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, mostRefusal)) // what breaks off is passed on as far as it came
	return &refusal{status: resp.StatusCode, header: resp.Header, body: body}
}

// fault says how an answer tells that its target did not serve the request: nil where
// the answer is the client's.
func (x *exchange) fault(resp *http.Response) *failure {
	status := resp.StatusCode
	if status == http.StatusOK {
		return nil
	}
	f := &failure{cause: fmt.Sprintf("%s answered %d", x.sent.target, status), why: whyStatus}
	f.kills = killsOf(resp.Header, x.sent.peer)
	switch {
	case f.kills > 0:
		return f
	case x.refuses(resp):
		if !x.wrote && x.speaksForEngine(resp) {
			f.refusal = takeRefusal(resp)
		}
		return f
	case status >= 500:
		f.silent, f.broke = status == http.StatusGatewayTimeout, true
		return f
	case status == http.StatusNoContent || status == http.StatusResetContent || status/100 == 3:
		return f // nothing, or another address, which is none of the client's business
	}
	return nil
}

// refuses says whether a status tells of the target and not of the request, though the
// target did not fail: it does not let us in, does not have the model or is full.
func (x *exchange) refuses(resp *http.Response) bool {
	switch resp.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return true
	case http.StatusNotFound:
		return x.lacks(resp)
	}
	return false
}

// speaksForEngine says whether a refusal is an engine's, or one that any balancer may
// give. That a peer does not let us in is not the client's business.
func (x *exchange) speaksForEngine(resp *http.Response) bool {
	own := resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden
	return x.sent.peer == nil || !own || resp.Header.Get(headerReplica) != ""
}

// lacks says whether a 404 is the target's: it does not have the model, or it does not
// know a path that other replicas of the model serve. Else it is the request's, whose
// answer is passed on.
func (x *exchange) lacks(resp *http.Response) bool {
	if x.held {
		return false // what the request goes on from is there or nowhere
	}
	head, _ := io.ReadAll(io.LimitReader(resp.Body, mostRefusal)) // as in takeRefusal
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), resp.Body), resp.Body}
	switch about(head) {
	case aboutModel:
		return true
	case aboutRequest:
		return false
	}
	return x.rt.servesPath(x.model, x.endpoint)
}

// subject is what a 404 is about.
type subject int

const (
	aboutNothing subject = iota // it does not say
	aboutModel
	aboutRequest
)

// about says what an engine's 404 is about. vLLM, SGLang and OpenAI name the model in
// the message, the parameter or the code.
func about(body []byte) subject {
	said := aboutNothing
	var read func(key, value []byte)
	read = func(key, value []byte) {
		switch string(key) {
		case `"error"`:
			members(value, read)
		case `"code"`, `"param"`:
			switch {
			case string(value) == `"model"` || string(value) == `"model_not_found"`:
				said = aboutModel
			case kindOf(value) == '"' && said == aboutNothing:
				said = aboutRequest
			}
		case `"message"`, `"detail"`:
			if said == aboutNothing && bytes.Contains(bytes.ToLower(value), []byte("model")) {
				said = aboutModel
			}
		}
	}
	members(body, read)
	return said
}

// noteServed notes that a replica serves a path.
func (k rank) noteServed(e *endpoint) {
	if k.replica == nil {
		return
	}
	if _, known := k.count.served.Load(e); !known {
		k.count.served.Store(e, struct{}{})
	}
}

// servesPath says whether any replica of a model has served a path.
func (r *Runtime) servesPath(model string, e *endpoint) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rep := range r.replicas {
		if _, known := rep.count.served.Load(e); known && rep.cfg.Model == model {
			return true
		}
	}
	return false
}

// refused says whether a request that core has rejected is one that every target it
// was tried at refused: then the last refusal is the answer.
func (x *exchange) refused() bool {
	switch x.told.reason {
	case core.RejectRefused, core.RejectTooManyTry, core.RejectRetries:
		return x.last != nil && x.last.refusal != nil && !x.faulted
	}
	return false
}

// passRefusal answers with what the last target said.
func (x *exchange) passRefusal() {
	f, h := x.last.refusal, x.w.Header()
	for name, values := range f.header {
		f.header[name] = slices.Clone(values)
	}
	copyHeaders(h, f.header)
	x.mark(h, f.header)
	x.markKills(h)
	x.announce(h)
	h["Content-Length"] = []string{strconv.Itoa(len(f.body))}
	x.wrote = true
	x.w.WriteHeader(f.status)
	_, _ = x.w.Write(f.body) // a client that has gone reads nothing
}
