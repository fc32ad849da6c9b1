package peer

import (
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

// The wire between balancers.
const (
	// HeaderToken carries the service's peer token.
	HeaderToken = "X-Skyserve-Peer-Token"
	// PathHeartbeat answers a Heartbeat, PathRegion a telemetry.RegionSnapshot.
	PathHeartbeat = "/skyserve/v1/heartbeat"
	PathRegion    = "/skyserve/v1/region"
)

// Heartbeat is what a balancer tells its peers ten times a second.
type Heartbeat struct {
	ID     string           `json:"id"`
	Region service.Region   `json:"region"`
	Models []core.ModelLoad `json:"models"` // sorted by model
}

// Source is what the handlers answer with; both functions may be called from
// many goroutines.
type Source struct {
	Heartbeat func() Heartbeat
	Region    func() telemetry.RegionSnapshot
}

// Register adds the two handlers to mux. Requests without the token are
// answered 401; with an empty token, those that do not come from this machine.
func Register(mux *http.ServeMux, token string, s Source) {
	mux.HandleFunc("GET "+PathHeartbeat, guarded(token, func() any { return s.Heartbeat() }))
	mux.HandleFunc("GET "+PathRegion, guarded(token, func() any { return s.Region() }))
}

func guarded(token string, answer func() any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if !Authorized(r, token) {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error":{"message":"this path is for the service's other balancers: it needs their token"}}` + "\n"))
			return
		}
		// An error here means that the peer has gone; it asks again.
		_ = json.NewEncoder(w).Encode(answer())
	}
}

// Authorized says whether a request comes from a balancer of the same service:
// it carries the token or, where none is configured, comes from this machine.
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
