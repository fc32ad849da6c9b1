package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"skyserve/lbd/prefix"
)

// SentPrompt is a prompt that is being sent to a replica.
type SentPrompt struct {
	Replica string
	Model   string
	Adapter string // the LoRA adapter; empty = none
	// Body is the request's body, valid only during the call.
	Body []byte
	// Key is the key of the prompt, and Bytes its length.
	Key   prefix.Key
	Bytes int
}

// pathsToTokenize are the endpoints whose bodies /tokenize accepts.
var pathsToTokenize = map[string]bool{"/v1/chat/completions": true, "/v1/completions": true}

// reportSent reports the prompt of an attempt to Options.Sent, if the replica has cache events. Prompts of
// tenants with their own seed (see seedOf) are not reported: cache events do not tell to which tenant a KV block
// belongs.
func (x *exchange) reportSent() {
	rep := x.current.rank.replica
	if rep == nil || rep.cfg.CacheEvents == "" || x.rt.sent == nil || rep.external != nil || x.body == nil || x.isContinuation() || !pathsToTokenize[x.endpoint.Path] || x.rt.seedOf(x.tenant) != x.rt.seedOf("") {
		return
	}
	r := x.answer.Rendering
	if r == nil {
		return
	}
	x.rt.sent(&SentPrompt{Replica: rep.cfg.ID, Model: x.model, Adapter: x.adapter, Body: x.body.buf.B, Key: r.Key(), Bytes: r.Len()})
}

// maxTokenization is the maximum length of a response of /tokenize: a million tokens.
const maxTokenization = 16 << 20

// Tokenize requests the tokens of a prompt from a replica's engine: body is that of a chat or a
// completion.
func (r *Runtime) Tokenize(ctx context.Context, id string, body []byte) ([]uint32, error) {
	r.mu.Lock()
	rep := r.replicas[id]
	r.mu.Unlock()
	if rep == nil {
		return nil, fmt.Errorf("tokenizing a prompt: replica %q was removed", id)
	}
	req := &http.Request{
		Method: http.MethodPost, Host: rep.base.Host, ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)),
		URL:    &url.URL{Scheme: rep.base.Scheme, Host: rep.base.Host, Path: strings.TrimSuffix(rep.base.Path, "/") + "/tokenize"},
		Header: http.Header{"Content-Type": {"application/json"}, headerRequestID: {"tokenize-" + requestID("")}},
	}
	rep.authorize(req.Header)
	resp, err := rep.transport.RoundTrip(req.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("tokenizing a prompt at replica %q: %w", id, err)
	}
	defer resp.Body.Close()
	var answer struct {
		Tokens []uint32 `json:"tokens"`
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxTokenization))
	switch {
	case err != nil:
		return nil, fmt.Errorf("tokenizing a prompt at replica %q: %w", id, err)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("tokenizing a prompt at replica %q: its engine returned %d", id, resp.StatusCode)
	}
	if err := json.Unmarshal(text, &answer); err != nil || len(answer.Tokens) == 0 {
		return nil, fmt.Errorf("tokenizing a prompt at replica %q: its engine returned no token ids", id)
	}
	return answer.Tokens, nil
}
