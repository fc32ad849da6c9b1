package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"skyserve/lbd/core"
	"skyserve/lbd/openai"
)

// A client can exchange audio with an engine over a WebSocket (/v1/realtime). The request that opens it
// is admitted and placed like any other, and is outstanding at its replica until the WebSocket ends.

const (
	headerProtocol   = "Sec-Websocket-Protocol"
	protocolRealtime = "realtime"
	// protocolKey begins the subprotocol with the API key of a client in a browser, where a page cannot
	// set headers of a WebSocket. It is OpenAI's.
	protocolKey = "openai-insecure-api-key."
)

// upgrader is a transport that can change the protocol of a connection; see wire.Transport.Upgrade.
type upgrader interface {
	Upgrade(req *http.Request) (*http.Response, error)
}

// offeredProtocols returns the subprotocols that a client offers.
func offeredProtocols(h http.Header) (offered []string) {
	for _, line := range h[headerProtocol] {
		for protocol := range strings.SplitSeq(line, ",") {
			if protocol = strings.TrimSpace(protocol); protocol != "" {
				offered = append(offered, protocol)
			}
		}
	}
	return offered
}

func offersProtocol(h http.Header, protocol string) bool {
	return slices.Contains(offeredProtocols(h), protocol)
}

// keyInProtocol returns the API key among the subprotocols; empty if there is none.
func keyInProtocol(h http.Header) string {
	for _, protocol := range offeredProtocols(h) {
		if key, ok := strings.CutPrefix(protocol, protocolKey); ok {
			return key
		}
	}
	return ""
}

// withKeyHeader returns a request whose API key, if it is among the subprotocols, is in the usual header.
func withKeyHeader(req *http.Request) *http.Request {
	key := keyInProtocol(req.Header)
	if key == "" || req.Header.Get("Authorization") != "" {
		return req
	}
	own := *req
	own.Header = req.Header.Clone()
	own.Header.Set("Authorization", "Bearer "+key)
	return &own
}

// removeKeyProtocol removes the API key from the subprotocols of a request to an engine.
func removeKeyProtocol(h http.Header) {
	offered := slices.DeleteFunc(offeredProtocols(h), func(protocol string) bool { return strings.HasPrefix(protocol, protocolKey) })
	if len(offered) == 0 {
		h.Del(headerProtocol)
		return
	}
	h[headerProtocol] = []string{strings.Join(offered, ", ")}
}

// isWebSocket reports whether a request asks to open a WebSocket over a connection that can change its
// protocol.
func isWebSocket(w http.ResponseWriter, req *http.Request) bool {
	_, ok := w.(http.Hijacker)
	return ok && namedIn(req.Header["Connection"], "Upgrade") && strings.EqualFold(req.Header.Get("Upgrade"), "websocket")
}

// errNoWebSocket rejects a request that does not ask to open a WebSocket.
func errNoWebSocket() *openai.Error {
	return &openai.Error{
		Status: http.StatusUpgradeRequired, Kind: openai.TypeInvalid, Code: "websocket_required",
		Message: "this path needs a WebSocket over HTTP/1.1: send 'Connection: Upgrade' and 'Upgrade: websocket'",
	}
}

// admitUpgrade is admit for a request that opens a WebSocket. Its model is a parameter of its URL.
func (x *exchange) admitUpgrade() (*core.Request, *openai.Error) {
	if !isWebSocket(x.w, x.req) {
		x.w.Header().Set("Upgrade", "websocket")
		return nil, errNoWebSocket()
	}
	if x.rt.RequiresKeys() {
		x.req = withKeyHeader(x.req)
	}
	from, refused := x.rt.identify(x.req)
	if x.sender = from; refused != nil {
		return nil, refused
	}
	if refused := x.refuseOrigin(); refused != nil {
		return nil, refused
	}
	x.hidesCache = x.rt.hidesCache(&x.sender)
	if refused := x.admitByQuota(); refused != nil {
		return nil, refused
	}
	name, refused := x.rt.queryModel(x.req.URL)
	if refused != nil {
		return nil, refused
	}
	c := openai.NewCall(name, x.rt.seed)
	resolved, divided, refused := x.rt.resolveModel(&c)
	if refused != nil {
		return nil, refused
	}
	x.setSession(x.req, x.endpoint, &c)
	if divided != nil {
		resolved = x.resolveSplit(divided, "")
	}
	x.streamWanted = true
	x.model, x.adapter, x.upgradeModel = resolved.Model, resolved.Adapter, cmp.Or(resolved.Adapter, resolved.Model)
	if x.fingerprint == 0 {
		x.fingerprint = c.Fingerprint(x.endpoint, resolved)
	}
	x.answer.Rendering = openai.Render(x.rt.seedOf(x.tenant), x.endpoint, &c, resolved)
	if refused := x.reserveQuota(); refused != nil {
		x.release()
		return nil, refused
	}
	x.price = nil // the tokens of a WebSocket are not counted, so its cost is unknown and not 0
	return x.coreRequest(""), nil
}

// refuseOrigin rejects a WebSocket of a web page that may not use the API: browsers do not check
// permissions for WebSockets as they do for other requests.
func (x *exchange) refuseOrigin() *openai.Error {
	given := x.req.Header.Get("Origin")
	if x.from != "" || given == "" || x.rt.origins.Load().allows(given) {
		return nil
	}
	if u, err := url.Parse(given); err == nil && strings.EqualFold(u.Host, x.req.Host) {
		return nil
	}
	return &openai.Error{
		Status: http.StatusForbidden, Kind: openai.TypePermission, Code: "origin_not_allowed", Param: "Origin",
		Message: fmt.Sprintf("header Origin: web pages of %s may not use this service; an operator can allow them with balancer.cors", openai.Clip([]byte(given))),
	}
}

// queryModel returns the model in a URL. Clients of engines with one model do not name it.
func (r *Runtime) queryModel(u *url.URL) (name string, refused *openai.Error) {
	names := u.Query()["model"]
	switch {
	case len(names) > 1:
		return "", openai.Invalid("model", "ambiguous_key", "URL parameter model: must occur only once")
	case len(names) == 1:
		return names[0], nil
	}
	for _, known := range r.models.Load().byName {
		if name != "" && name != known.Model {
			return "", r.errModel("URL parameter model: is required")
		}
		name = known.Model
	}
	return name, nil
}

// outgoingUpgrade completes a request to a target that opens a WebSocket.
func (x *exchange) outgoingUpgrade(ctx context.Context, base *url.URL, header http.Header) *http.Request {
	header["Connection"], header["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
	if _, given := header["User-Agent"]; !given {
		header["User-Agent"] = nil // otherwise net/http adds its own
	}
	if x.keysRequired {
		removeKeyProtocol(header)
	}
	query := x.req.URL.RawQuery
	if values := x.req.URL.Query(); values.Has("model") && values.Get("model") != x.upgradeModel {
		values.Set("model", x.upgradeModel)
		query = values.Encode()
	}
	out := &http.Request{
		Method: http.MethodGet, Header: header, Host: base.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		URL: &url.URL{Scheme: base.Scheme, Host: base.Host, Path: strings.TrimSuffix(base.Path, "/") + x.endpoint.Path, RawQuery: query},
	}
	return out.WithContext(ctx)
}

// errCannotUpgrade is the error of an attempt whose transport cannot change the protocol of a connection.
var errCannotUpgrade = errors.New("its connection does not support WebSocket")

// transmit sends a request over a transport.
func (x *exchange) transmit(over http.RoundTripper, out *http.Request) (*http.Response, error) {
	if !x.endpoint.Upgrades {
		return over.RoundTrip(out)
	}
	u, ok := over.(upgrader)
	if !ok {
		return nil, errCannotUpgrade
	}
	return u.Upgrade(out)
}
