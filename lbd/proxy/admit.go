package proxy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"mime"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"skyserve/internal/service"
	"skyserve/lbd/core"
	"skyserve/lbd/openai"
	"skyserve/lbd/quota"
)

// sender describes the sender of a request, and what the request's headers say.
type sender struct {
	from    string   // the peer that forwarded it, empty for a client's request
	hop     core.Hop // the forwards before this balancer
	tenant  string
	session string
	// sessionAge is the age of the session, as reported by the peer; 0 = unknown.
	sessionAge time.Duration
	maxWait    time.Duration // maximum time in this queue, set by a peer; 0 = the default
	// due is the time until the deadline of a deferred request; 0 = the tier's. age is the time since its
	// batch was created.
	due, age time.Duration
	tier     service.Tier
	maxTier  service.Tier // the most urgent tier that the key allows; empty = any
	// fingerprint and kills are as in core.Request, sent by a peer; 0 = none.
	fingerprint uint64
	kills       int
	// continueOff: another replica must not continue the response. continued: the prompt contains the start
	// of the response, so only an engine that can continue a response may serve it.
	continueOff, continued bool
	requestedCounts        string // headerCounts of the peer: countsExact, countsAny or empty
	// keysRequired: clients had to present keys when the request arrived. Its Authorization and X-Api-Key
	// headers may contain a key or an identity token for this service, so they are not forwarded.
	keysRequired bool
	account      *quota.Account // of the key that a client presented; nil if no key is required
	// denied receives the denial of a request that exceeds a limit of its sender; nil for requests that are not of a
	// batch.
	denied *quota.Denial
}

// maxPeerDuration limits the session age and the wait that a peer may send. A deferred request
// with a later deadline waits at most this long at a peer.
const maxPeerDuration = 24 * time.Hour

// parseMillis parses headerSessionAge and headerWait. It returns 0 if the header is missing or
// malformed.
func parseMillis(ms string) time.Duration {
	n, err := strconv.ParseUint(ms, 10, 63)
	if err != nil {
		return 0
	}
	return time.Duration(min(n, uint64(maxPeerDuration/time.Millisecond))) * time.Millisecond
}

// requestID returns the client's id if it is valid, otherwise a new one.
func requestID(given string) string {
	if given != "" && len(given) <= maxRequestID && strings.IndexFunc(given, invalidIDRune) < 0 {
		return given
	}
	return fmt.Sprintf("req-%016x%08x", rand.Uint64(), rand.Uint32())
}

// invalidIDRune reports whether a character is not allowed in a request id.
func invalidIDRune(c rune) bool { return c <= ' ' || c > '~' }

// errUnauthorized rejects a request without a valid credential.
func (r *Runtime) errUnauthorized() *openai.Error {
	want := "API key"
	if r.identityTokens.enabled() {
		want += " or identity token"
	}
	return &openai.Error{
		Status: http.StatusUnauthorized, Kind: openai.TypeAuth, Code: "invalid_api_key",
		Message: "missing or invalid " + want + ": send one as 'Authorization: Bearer KEY' or 'x-api-key: KEY'", Challenge: "Bearer",
	}
}

// errTier rejects a request for a tier above what its key or token allows. The tier is not lowered silently: a
// client that relies on a first token within a second must receive an error.
func errTier(requested, limit service.Tier) *openai.Error {
	return &openai.Error{
		Status: http.StatusForbidden, Kind: openai.TypePermission, Code: "tier_not_allowed", Param: headerTier,
		Message: fmt.Sprintf("header %s: this API key or identity token allows tier %s (%s) at most, got %s (%s): omit the header or use a less urgent tier", headerTier, limit.Word(), limit, requested.Word(), requested),
	}
}

// identify distinguishes requests of peers from those of clients and parses their headers. Headers
// reserved for balancers are ignored in other requests.
func (r *Runtime) identify(req *http.Request) (o sender, refused *openai.Error) {
	if o, ok := req.Context().Value(batchSender{}).(*sender); ok {
		return *o, nil
	}
	var err error
	h := req.Header
	hop, from := core.Hop(h.Get(headerHop)), h.Get(headerFrom)
	o.keysRequired = r.RequiresKeys()
	trusted := from != "" && validHop(hop) && peerAllowed(r.self.PeerToken, o.keysRequired, req)
	if trusted {
		o.from, o.hop, o.tenant = from, hop, h.Get(headerTenant)
		o.sessionAge, o.maxWait = parseMillis(h.Get(headerSessionAge)), parseMillis(h.Get(headerWait))
		o.continued, o.requestedCounts = h.Get(headerContinued) != "", h.Get(headerCounts)
		o.fingerprint, _ = strconv.ParseUint(h.Get(headerFingerprint), 16, 64) // 0 if missing
		o.kills = parseKills(h.Get(headerKills))
	} else {
		account, refused := r.authenticate(req.Context(), h)
		if refused != nil {
			return o, refused
		}
		o.applyKey(account)
		o.keysRequired = o.keysRequired || account != nil // the configuration may have changed meanwhile
	}
	if value := h.Get(headerTier); value != "" || o.tier == "" {
		o.tier, err = service.ParseTier(value)
	}
	if err != nil {
		return o, openai.Invalid(headerTier, "invalid_tier", "header "+headerTier+": "+err.Error())
	}
	if o.tier.MoreUrgentThan(o.maxTier) {
		return o, errTier(o.tier, o.maxTier)
	}
	if refused := o.setDeadline(h, time.Now()); refused != nil && !trusted {
		return o, refused
	}
	switch value := h.Get(headerContinue); strings.ToLower(value) {
	case "", continueOn:
	case continueOff:
		o.continueOff = true
	default:
		return o, openai.Invalid(headerContinue, "invalid_continue", fmt.Sprintf("header %s: must be on or off, got %q", headerContinue, value))
	}
	return o, nil
}

// applyKey applies the tenant and the tiers of a key.
func (o *sender) applyKey(a *quota.Account) {
	if a == nil {
		return
	}
	o.account = a
	o.tenant, o.tier, o.maxTier = a.Rights()
}

func validHop(h core.Hop) bool {
	return h == core.HopLocal || h == core.HopRemote || h == core.HopBoth
}

// setSession sets the conversation or client of a request. It is a hash, so its length is bounded, and
// decisions and records contain no user names. The hash depends on the tenant, so that equal names of different
// tenants are different sessions. The session from a peer is already a hash.
func (o *sender) setSession(req *http.Request, e *openai.Endpoint, c *openai.Call) {
	given := req.Header.Get(headerSession)
	if o.from != "" && given != "" {
		o.session = given[:min(len(given), maxRequestID)]
		return
	}
	if given == "" {
		given = namedSession(req.Header)
	}
	o.session = sessionName(o.tenant, c.PromptCacheKey(), given, c.User(e), req.RemoteAddr)
}

func sessionName(tenant string, cacheKey []byte, header string, user []byte, client string) string {
	var hash, seed uint64
	if tenant != "" {
		seed = xxh3.HashString(tenant)
	}
	switch {
	case len(cacheKey) > 0:
		hash = xxh3.HashSeed(cacheKey, seed)
	case header != "":
		hash = xxh3.HashStringSeed(header, seed)
	case len(user) > 0:
		hash = xxh3.HashSeed(user, seed)
	default:
		host, _, err := net.SplitHostPort(client)
		if err != nil {
			host = client
		}
		hash = xxh3.HashStringSeed(host, seed)
	}
	return strconv.FormatUint(hash, 16)
}

// errBody returns the error for a body that could not be read. timeout is the limit to name if it did not arrive
// in time.
func errBody(err error, timeout time.Duration) *openai.Error {
	var tooLarge *http.MaxBytesError
	var decoded *decodedTooLargeError
	if errors.As(err, &tooLarge) {
		form := ""
		if errors.As(err, &decoded) {
			form = " when decoded"
		}
		return &openai.Error{
			Status: http.StatusRequestEntityTooLarge, Kind: openai.TypeInvalid, Code: "request_too_large",
			Message: fmt.Sprintf("reading the request body: must have at most %d bytes%s", tooLarge.Limit, form),
		}
	}
	if refused := errEncoding(err); refused != nil {
		return refused
	}
	if errors.Is(err, quota.ErrMemoryFull) || errors.Is(err, quota.ErrShareFull) {
		return errNoMemory(err)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &openai.Error{
			Status: http.StatusRequestTimeout, Kind: openai.TypeInvalid, Code: "request_timeout",
			Message: fmt.Sprintf("reading the request body: not received within %v: send a smaller body, or use a faster connection", timeout),
		}
	}
	return openai.Invalid("", "incomplete_body", "reading the request body: "+err.Error())
}

// readCall parses a body in the format of its endpoint.
func (x *exchange) readCall(body []byte) (c openai.Call, refused *openai.Error) {
	var err error
	var boundary string
	code, format := "invalid_json", "JSON"
	if x.endpoint.Form {
		code, format = "invalid_multipart", "multipart/form-data"
		if boundary, refused = formBoundary(x.req.Header["Content-Type"]); refused != nil {
			return c, refused
		}
		c, err = openai.ReadForm(body, boundary, x.rt.seed)
	} else {
		c, err = openai.ReadCall(body, x.rt.seed)
	}
	var ambiguous *openai.AmbiguousKeyError
	if errors.As(err, &ambiguous) {
		return c, openai.Invalid(ambiguous.Key, "ambiguous_key", "reading the request body: "+err.Error())
	}
	if err != nil {
		return c, openai.Invalid("", code, "reading the request body as "+format+": "+err.Error())
	}
	return c, nil
}

// formBoundary returns the boundary of a form from its content type. It rejects escapes and continued
// parameters, which parsers read differently.
func formBoundary(header []string) (boundary string, refused *openai.Error) {
	contentType := strings.Join(header, ", ")
	kind, params, err := mime.ParseMediaType(contentType)
	boundary = params["boundary"]
	if err != nil || kind != "multipart/form-data" || boundary == "" || len(boundary) > maxBoundary || len(header) > 1 || strings.ContainsAny(contentType, `*\`) {
		return "", openai.Invalid("Content-Type", "invalid_content_type", fmt.Sprintf(
			"header Content-Type: must be multipart/form-data with a boundary of 1 to %d characters, got %s", maxBoundary, openai.Clip([]byte(contentType))))
	}
	return boundary, nil
}

// maxBoundary is the maximum length of a boundary (RFC 2046, section 5.1.1).
const maxBoundary = 70

// resolveCall parses a body and resolves its model. If that is a split, it returns the split.
func (x *exchange) resolveCall(body []byte) (c openai.Call, resolved openai.ResolvedModel, divided *split, refused *openai.Error) {
	if c, refused = x.readCall(body); refused == nil {
		resolved, divided, refused = x.rt.resolveModel(&c)
	}
	return c, resolved, divided, refused
}

// resolveModel resolves the model of a call. If that is a split, it returns the split.
func (r *Runtime) resolveModel(c *openai.Call) (resolved openai.ResolvedModel, divided *split, refused *openai.Error) {
	name, err := c.ModelName()
	if err != nil {
		refused = r.errModel(err.Error())
		if refused.Status, refused.Code = http.StatusBadRequest, "invalid_type"; errors.Is(err, openai.ErrNoModel) {
			refused.Code = "missing_required_parameter"
		}
		return resolved, nil, refused
	}
	t := r.models.Load()
	resolved, known := t.resolve(name)
	if known {
		return resolved, nil, nil
	}
	if divided = t.splits[string(name)]; divided == nil {
		refused = r.errUnknownModel(name)
	}
	return resolved, divided, refused
}

// errUnknownModel rejects a name that is not in the table of models. While the table is empty, the model may exist: `skyserve
// lb` knows a model that is not declared once an engine has listed it.
func (r *Runtime) errUnknownModel(name []byte) *openai.Error {
	if len(r.models.Load().names) == 0 {
		return &openai.Error{
			Status: http.StatusServiceUnavailable, Kind: openai.TypeServer, Param: "model", Code: "no_models", RetryAfter: 5,
			Message: "model: " + openai.Clip(name) + " is not known yet: no replica of this balancer has been ready since its start; its log and 'skyserve top' show why",
		}
	}
	return r.errModel("model: " + openai.Clip(name) + " does not exist")
}

// maxListed is the maximum number of models that an error message lists.
const maxListed = 20

func (r *Runtime) errModel(message string) *openai.Error {
	names := r.models.Load().names
	more := ""
	if len(names) > maxListed {
		more = fmt.Sprintf(" and %d more", len(names)-maxListed)
		names = names[:maxListed]
	}
	if len(names) == 0 {
		message += "; no models are available yet"
	} else {
		message += "; available models: " + strings.Join(names, ", ") + more
	}
	return &openai.Error{Status: http.StatusNotFound, Kind: openai.TypeInvalid, Param: "model", Code: codeNoModel, Message: message}
}
