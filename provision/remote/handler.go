package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
)

// callTimeout is the maximum duration of one call: a launch waits up to a minute for the cloud's
// eventual consistency, and a machine terminates within five.
const callTimeout = 6 * time.Minute

// maxBody is the maximum size of a call: a launch with its cloud-init document.
const maxBody = 1 << 20

// Handler executes calls in the cloud of its machine.
type Handler struct {
	// Service and Owner identify the machines that it lists, launches and terminates. It rejects calls
	// for others, whatever the machine's identity permits.
	Service, Owner string
	// Provider and Attestor act in all regions of the cloud. ByRegion has one provider per region.
	Provider provision.Provider
	Attestor provision.KeyAttestor
	ByRegion map[service.Region]provision.Provider
}

// ServeHTTP executes one call, named by the path value "call". The caller has already been authorized.
// A call that fails in the cloud is answered with 200 and its error; an invalid call with 400, a
// forbidden one with 403.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := http.NewResponseController(w)
	deadline := time.Now().Add(callTimeout)
	if err := errors.Join(c.SetReadDeadline(deadline), c.SetWriteDeadline(deadline)); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	ctx, cancel := context.WithDeadline(r.Context(), deadline)
	defer cancel()
	var in request
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = json.Unmarshal(text, &in)
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("reading the request body: %v", err), http.StatusBadRequest)
		return
	}
	if err := h.checkOwner(in); err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	out, err := h.dispatch(ctx, Call(r.PathValue("call")), in)
	if errors.Is(err, errUnknownCall) {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err != nil {
		out = response{Prices: out.Prices, Error: newWireError(err)}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // a caller that has disconnected retries
}

var errUnknownCall = errors.New("unknown call, or missing argument")

// checkOwner returns why a call is not permitted for this service; nil when it is.
func (h *Handler) checkOwner(in request) error {
	refuse := func(what, service, owner string, kind provision.ObjectKind) error {
		switch {
		case service != h.Service || owner != h.Owner:
			return fmt.Errorf("%s: belongs to service %q of owner %q, must belong to service %q of owner %q", what, service, owner, h.Service, h.Owner)
		case kind != provision.KindReplica:
			return fmt.Errorf("%s: kind is %s, must be %s", what, kind, provision.KindReplica)
		}
		return nil
	}
	switch {
	case in.Want != nil:
		return refuse(in.Want.ID, in.Want.Service, in.Want.Owner, in.Want.Kind)
	case in.Object != nil:
		return refuse(in.Object.ID, in.Object.Service, in.Object.Owner, in.Object.Kind)
	case in.Service != "" && in.Service != h.Service:
		return fmt.Errorf("listing service %q: must be %q", in.Service, h.Service)
	}
	return nil
}

// dispatch executes a call.
func (h *Handler) dispatch(ctx context.Context, call Call, in request) (out response, err error) {
	switch {
	case call == CallOfferings:
		out.Offerings, err = h.Provider.Offerings(ctx, in.Region)
	case call == CallList && in.Service != "":
		out.Objects, err = h.list(ctx, in)
	case call == CallLaunch && in.Want != nil:
		out.Object, err = h.Provider.Launch(ctx, *in.Want)
	case call == CallTerminate && in.Object != nil:
		err = h.terminate(ctx, *in.Object)
	case call == CallFingerprint && in.Object != nil:
		out.Fingerprint, err = h.Attestor.Fingerprint(ctx, *in.Object)
	case call == CallPrices:
		out.Prices, err = h.prices(ctx, in.Region)
	default:
		err = fmt.Errorf("%w: %q", errUnknownCall, call)
	}
	return out, err
}

// prices returns the prices of a region; none where its cloud does not publish them.
func (h *Handler) prices(ctx context.Context, region service.Region) ([]provision.Price, error) {
	if p, tells := h.Provider.(provision.Pricer); tells {
		return p.Prices(ctx, region)
	}
	return nil, nil
}

// list lists the objects of a region, or of all regions.
func (h *Handler) list(ctx context.Context, in request) ([]provision.Object, error) {
	if in.Region == "" {
		return h.Provider.List(ctx, in.Service)
	}
	one, known := h.ByRegion[in.Region]
	if !known {
		return nil, fmt.Errorf("listing %s: this machine serves only other regions", in.Region)
	}
	return one.List(ctx, in.Service)
}

// terminate terminates a machine after the cloud confirms that it belongs to this service: a handle
// alone could be anybody's.
func (h *Handler) terminate(ctx context.Context, o provision.Object) error {
	have, err := h.list(ctx, request{Service: h.Service, Region: o.Region})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(have, func(is provision.Object) bool { return is.Handle == o.Handle && is.Region == o.Region })
	if i < 0 {
		return nil // already gone
	}
	if is := have[i]; h.checkOwner(request{Object: &is}) != nil {
		return &provision.OwnedError{Resource: string(is.Kind) + " " + is.ID, Where: string(is.Region), Owner: is.Owner}
	}
	return h.Provider.Terminate(ctx, o)
}
