package proxy

import (
	"cmp"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"

	"skyserve/internal/service"
)

// originRules are the web pages that may use the public API, by the CORS protocol of the Fetch standard.
// It is never changed.
type originRules struct {
	origins []string
	any     bool   // every page
	maxAge  string // in seconds
}

const (
	corsMethods = "GET, POST, DELETE"
	// corsDefaultAge is the time for which browsers cache the permission by default.
	corsDefaultAge = 10 * time.Minute
)

// corsExposed are the headers of responses that pages can read, in addition to those that every page
// can read. A wildcard is not understood by every browser.
var corsExposed = strings.Join([]string{
	"X-Request-ID", headerRegion, headerReplica, headerModel, headerQueueMs, headerPrefixMatch, headerDecision, "X-Skyserve-Estimate", "X-Skyserve-Waits-For", "Retry-After",
	"X-RateLimit-Limit-Requests", "X-RateLimit-Remaining-Requests", "X-RateLimit-Reset-Requests",
	"X-RateLimit-Limit-Tokens", "X-RateLimit-Remaining-Tokens", "X-RateLimit-Reset-Tokens",
}, ", ")

// SetCORS sets the web pages that may use the public API; nil = none. It applies to requests that arrive
// later.
func (r *Runtime) SetCORS(c *service.CORS) {
	if c == nil {
		r.origins.Store(nil)
		return
	}
	r.origins.Store(&originRules{
		origins: slices.Clone(c.Origins), any: slices.Contains(c.Origins, service.AnyOrigin),
		maxAge: strconv.Itoa(int(cmp.Or(c.MaxAge, corsDefaultAge).Seconds())),
	})
}

// allows reports whether the pages of an origin may use the API.
func (o *originRules) allows(origin string) bool {
	return o != nil && (o.any || slices.Contains(o.origins, origin))
}

// serve adds the permission of the page that sent a request, if it has one, to the header of the response.
// It answers a preflight request, which asks only for that permission and never contains a key, and returns
// true for it.
func (o *originRules) serve(w http.ResponseWriter, req *http.Request) (answered bool) {
	h := w.Header()
	if !o.any {
		h.Set("Vary", "Origin") // caches must not serve one page's response to another, or to none
	}
	origin := req.Header.Get("Origin")
	if origin == "" || !o.allows(origin) {
		return false
	}
	if o.any {
		origin = service.AnyOrigin
	}
	h.Set("Access-Control-Allow-Origin", origin)
	if req.Method != http.MethodOptions || req.Header.Get("Access-Control-Request-Method") == "" {
		h.Set("Access-Control-Expose-Headers", corsExposed)
		return false
	}
	h.Add("Vary", "Access-Control-Request-Headers")
	h.Set("Access-Control-Allow-Methods", corsMethods)
	if names := clientHeaders(req.Header["Access-Control-Request-Headers"]); names != "" {
		h.Set("Access-Control-Allow-Headers", names)
	}
	h.Set("Access-Control-Max-Age", o.maxAge)
	w.WriteHeader(http.StatusNoContent)
	return true
}

// clientHeaders returns the requested headers that a client may send: all but those between balancers.
// They are repeated one by one, because a wildcard does not include Authorization.
func clientHeaders(requested []string) string {
	var names []string
	for _, line := range requested {
		for name := range strings.SplitSeq(line, ",") {
			name = strings.TrimSpace(name)
			canonical := textproto.CanonicalMIMEHeaderKey(name)
			own := strings.HasPrefix(canonical, ownPrefix) && canonical != headerTier && canonical != headerDeadline && canonical != headerContinue
			if name != "" && !own {
				names = append(names, name)
			}
		}
	}
	return strings.Join(names, ", ")
}
