package proxy

import (
	"errors"
	"fmt"
	"math/rand/v2"
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

// origin is who sent a request.
type origin struct {
	from    string   // the peer that forwarded it, empty for a client's
	hop     core.Hop // how far it had come
	tenant  string
	session string
	// sessionAge is how long ago the session began, as the peer says; 0 = not known.
	sessionAge time.Duration
	wait       time.Duration // how long a peer lets it be held here; 0 = as long as others
	tier       service.Tier
	maxTier    service.Tier // the most urgent one that its key allows; empty = any
	// fingerprint and kills are those of core.Request, from a peer; 0 = none.
	fingerprint uint64
	kills       int
	// continueOff: the answer is not to be continued elsewhere; continued: it was,
	// by the peer, so that only an engine that can go on with it will do.
	continueOff, continued bool
	wantsCounts            string // what the peer says of the usage so far with each event; empty = it wants none
	// keyed: clients had to present keys when it came, so its Authorization is ours.
	keyed   bool
	account *quota.Account // of the key that a client presented; nil where none is asked for
}

// maxSpan bounds what a peer may say of a session's age, as no queue looks
// further back, and of the wait.
const maxSpan = 24 * time.Hour

// parseSpan reads headerSessionAge and headerWait: 0 when it is missing or
// malformed.
func parseSpan(ms string) time.Duration {
	n, err := strconv.ParseUint(ms, 10, 63)
	if err != nil {
		return 0
	}
	return time.Duration(min(n, uint64(maxSpan/time.Millisecond))) * time.Millisecond
}

// requestID is the client's id when it is fit to be one, else a new one.
func requestID(given string) string {
	if given != "" && len(given) <= maxRequestID && strings.IndexFunc(given, unfit) < 0 {
		return given
	}
	return fmt.Sprintf("req-%016x%08x", rand.Uint64(), rand.Uint32())
}

// unfit says whether a character may not be part of a request id.
func unfit(c rune) bool { return c <= ' ' || c > '~' }

func errUnauthorized() *openai.Error {
	return &openai.Error{
		Status: http.StatusUnauthorized, Kind: openai.TypeAuth, Code: "invalid_api_key",
		Message: "no valid API key was given: send one as 'Authorization: Bearer KEY'",
	}
}

// errTier answers a request for a tier above what its key allows. It is not lowered: a
// client that counts on a first token within a second shall know.
func errTier(asked, most service.Tier) *openai.Error {
	return &openai.Error{
		Status: http.StatusForbidden, Kind: openai.TypePermission, Code: "tier_not_allowed", Param: headerTier,
		Message: fmt.Sprintf("header %s: this API key may ask for %s at most, got %s: leave the header out or name a tier that is less urgent", headerTier, most, asked),
	}
}

// identify tells a peer's request from a client's and reads what its headers
// say. What only balancers may say is not heard from anybody else.
func (r *Runtime) identify(req *http.Request) (o origin, refused *openai.Error) {
	var err error
	h := req.Header
	hop, from := core.Hop(h.Get(headerHop)), h.Get(headerFrom)
	keys := r.keyring()
	o.keyed = len(keys) > 0
	trusted := from != "" && validHop(hop) && peerAllowed(r.self.PeerToken, keys, req)
	if trusted {
		o.from, o.hop, o.tenant = from, hop, h.Get(headerTenant)
		o.sessionAge, o.wait = parseSpan(h.Get(headerSessionAge)), parseSpan(h.Get(headerWait))
		o.continued, o.wantsCounts = h.Get(headerContinued) != "", h.Get(headerCounts)
		o.fingerprint, _ = strconv.ParseUint(h.Get(headerFingerprint), 16, 64) // 0 where there is none
		o.kills = parseKills(h.Get(headerKills))
	} else {
		account, ok := admit(keys, h)
		if !ok {
			return o, errUnauthorized()
		}
		o.enterAs(account)
	}
	if word := h.Get(headerTier); word != "" || o.tier == "" {
		o.tier, err = service.ParseTier(word)
	}
	if err != nil {
		return o, openai.Invalid(headerTier, "invalid_tier", "header "+headerTier+": "+err.Error())
	}
	if o.tier.Above(o.maxTier) {
		return o, errTier(o.tier, o.maxTier)
	}
	switch word := h.Get(headerContinue); strings.ToLower(word) {
	case "", continueOn:
	case continueOff:
		o.continueOff = true
	default:
		return o, openai.Invalid(headerContinue, "invalid_continue", fmt.Sprintf("header %s: unknown word %q: want on or off", headerContinue, word))
	}
	return o, nil
}

// enterAs takes over what a key says of its requests.
func (o *origin) enterAs(a *quota.Account) {
	if a == nil {
		return
	}
	o.account = a
	o.tenant, o.tier, o.maxTier = a.Rights()
}

func validHop(h core.Hop) bool {
	return h == core.HopRegion || h == core.HopRemote || h == core.HopBoth
}

// session names the conversation or client that a request belongs to. It is a
// hash: of bounded length, and no user's name gets into decisions and records. One
// tenant's is never another's, whatever they call it. A peer has hashed it already.
func (o *origin) setSession(req *http.Request, c *openai.Call) {
	given := req.Header.Get(headerSession)
	if o.from != "" && given != "" {
		o.session = given[:min(len(given), maxRequestID)]
		return
	}
	o.session = sessionName(o.tenant, c.PromptCacheKey(), given, c.User(), req.RemoteAddr)
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

// errBody is the answer to a body that could not be read.
func errBody(err error, limit int64) *openai.Error {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return &openai.Error{
			Status: http.StatusRequestEntityTooLarge, Kind: openai.TypeInvalid, Code: "request_too_large",
			Message: fmt.Sprintf("reading the request body: it is larger than %d bytes", limit),
		}
	}
	if errors.Is(err, quota.ErrMemoryFull) || errors.Is(err, quota.ErrShareFull) {
		return errNoMemory(err)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &openai.Error{
			Status: http.StatusRequestTimeout, Kind: openai.TypeInvalid, Code: "request_timeout",
			Message: "reading the request body: it did not come in time",
		}
	}
	return openai.Invalid("", "incomplete_body", "reading the request body: "+err.Error())
}

// understand parses a body and finds the model that it asks for.
func (r *Runtime) understand(body []byte) (c openai.Call, stands openai.ResolvedModel, refused *openai.Error) {
	c, err := openai.ReadCall(body, r.seed)
	var twofold *openai.AmbiguousKeyError
	if errors.As(err, &twofold) {
		return c, stands, openai.Invalid(twofold.Key, "ambiguous_key", "reading the request body: "+err.Error())
	}
	if err != nil {
		return c, stands, openai.Invalid("", "invalid_json", "reading the request body as JSON: "+err.Error())
	}
	name, err := c.ModelName()
	if err != nil {
		return c, stands, r.errModel(err.Error())
	}
	stands, known := r.models.Load().resolve(name)
	if !known {
		return c, stands, r.errModel("model: " + openai.Clip(name) + " is not served here")
	}
	return c, stands, nil
}

// maxListed is how many models an error lists.
const maxListed = 20

func (r *Runtime) errModel(message string) *openai.Error {
	names := r.models.Load().list
	more := ""
	if len(names) > maxListed {
		more = fmt.Sprintf(" and %d more", len(names)-maxListed)
		names = names[:maxListed]
	}
	if len(names) == 0 {
		message += "; no model is served yet"
	} else {
		message += "; there is " + strings.Join(names, ", ") + more
	}
	return &openai.Error{Status: http.StatusNotFound, Kind: openai.TypeInvalid, Param: "model", Code: "model_not_found", Message: message}
}
