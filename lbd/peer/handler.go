package peer

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"

	"skyserve/internal/service"
	"skyserve/internal/telemetry"
	"skyserve/lbd/core"
)

// Wire format between balancers.
const (
	// HeaderToken is the header with the service's peer token.
	HeaderToken = "X-Skyserve-Peer-Token"
	// PathHeartbeat returns a Heartbeat, PathRegion a telemetry.RegionSnapshot. PathPrefixes is in
	// prefixes.go.
	PathHeartbeat = "/skyserve/v1/heartbeat"
	PathRegion    = "/skyserve/v1/region"
)

// Heartbeat is a balancer's load report to its peers, ten times a second.
type Heartbeat struct {
	ID     string           `json:"id"`
	Region service.Region   `json:"region"`
	Models []core.ModelLoad `json:"models"` // sorted by model; empty while it drains
	// Killers are the fingerprints of requests that it rejects, because replicas died while serving them.
	Killers []core.StoppedFingerprint `json:"killers,omitempty"`
	// Draining: it is shutting down and accepts no new requests. Older balancers ignore this field,
	// but receive no models.
	Draining bool `json:"draining,omitempty"`
}

// HandlerSource provides the responses of the handlers; all functions may be called from many goroutines.
type HandlerSource struct {
	Heartbeat func() Heartbeat
	Region    func() telemetry.RegionSnapshot
	// Learned is core.Balancer.CacheUpdates at the current time; all is as in PathPrefixes. Keys is the fingerprint of the key
	// with which prompts are hashed; it is empty if no other balancer has the same key, because
	// then nothing can be shared.
	Learned func(since uint64, all bool, maxBytes int) (entries []core.CacheUpdate, next uint64, more bool)
	Keys    string
}

// Register adds the handlers to mux, and generates the name of this process for the responses of
// PathPrefixes. Requests without the token receive 401. If the token is empty, requests from other
// machines receive 401.
func Register(mux *http.ServeMux, token string, s HandlerSource) {
	mux.HandleFunc("GET "+PathHeartbeat, requireToken(token, func(*http.Request) any { return s.Heartbeat() }))
	mux.HandleFunc("GET "+PathRegion, requireToken(token, func(*http.Request) any { return s.Region() }))
	if s.Keys != "" {
		boot := rand.Text()
		mux.HandleFunc("GET "+PathPrefixes, requireToken(token, func(r *http.Request) any { return s.prefixes(r, boot) }))
	}
}

func requireToken(token string, answer func(*http.Request) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if !Authorized(r, token) {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error":{"message":"a peer token is required: this path is only for balancers of the service"}}` + "\n"))
			return
		}
		// An error here means that the peer disconnected; it will retry.
		_ = json.NewEncoder(w).Encode(answer(r))
	}
}

// Authorized reports whether a request is from a balancer of the same service: it has the token or,
// if none is configured, is from this machine. With certificates, the listener has also verified that of the balancer.
func Authorized(r *http.Request, token string) bool {
	if token == "" {
		return fromLoopback(r.RemoteAddr)
	}
	got, want := sha256.Sum256([]byte(r.Header.Get(HeaderToken))), sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1
}

func fromLoopback(remote string) bool {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
