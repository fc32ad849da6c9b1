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

// callTimeout is the maximum duration of one call. A launch waits up to a minute for the cloud's eventual
// consistency, and a termination takes up to five minutes.
const callTimeout = 6 * time.Minute

// maxBody is the maximum size of a call: a launch with its cloud-init document.
const maxBody = 1 << 20

// Handler executes calls in the cloud of its machine.
type Handler struct {
	// Service and Owner identify the machines that the handler lists, launches and terminates. It rejects
	// calls for other machines, even if the machine's own identity permits them.
	Service, Owner string
	// Balancers permits calls for balancers too, and repairs of firewalls; otherwise only calls for replicas.
	Balancers bool
	// Records changes the addresses of records of balancers, where Balancers is set; nil = this machine's cloud has none.
	Records provision.RecordUpdater
	// Provider and Attestor call all regions of the cloud. ByRegion contains one provider per region.
	Provider provision.Provider
	Attestor provision.KeyAttestor
	ByRegion map[service.Region]provision.Provider
}

// ServeHTTP executes one call, named by the path value "call". The caller has already been authorized. The
// response to a call that fails in the cloud is 200 with the error in its body; to an invalid call 400, and
// to a call for another service 403.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := http.NewResponseController(w)
	deadline := time.Now().Add(callTimeout)
	if err := errors.Join(c.SetReadDeadline(deadline), c.SetWriteDeadline(deadline)); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	ctx, cancel := context.WithDeadline(r.Context(), deadline)
	defer cancel()
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, fmt.Sprintf("reading the request body: %v", err), http.StatusBadRequest)
		return
	}
	out, err := h.execute(ctx, CallKind(r.PathValue("call")), text)
	switch {
	case errors.Is(err, errForeign):
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	case errors.Is(err, errInvalidCall):
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	case err != nil:
		out = response{Prices: out.Prices, Error: newWireError(err)}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // a caller that has disconnected repeats the call
}

// Call executes a call of a controller in this process, whose machine is in another cloud: it is a CallFunc. If the cloud
// rejects the credentials, Call returns an error, like a machine that does not respond.
func (h *Handler) Call(ctx context.Context, call CallKind, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := h.execute(ctx, call, body)
	var rejected *provision.CredentialsError
	if errors.As(err, &rejected) || errors.Is(err, errForeign) || errors.Is(err, errInvalidCall) {
		return nil, err
	}
	if err != nil {
		out = response{Prices: out.Prices, Error: newWireError(err)}
	}
	return json.Marshal(out)
}

var (
	errInvalidCall = errors.New("unknown call, or missing argument")
	errForeign     = errors.New("call for another service")
)

// execute executes a call after it has checked whose objects it is about. Errors include errInvalidCall and errForeign.
func (h *Handler) execute(ctx context.Context, call CallKind, body []byte) (out response, err error) {
	var in request
	if err := json.Unmarshal(body, &in); err != nil {
		return out, fmt.Errorf("%w: reading the request body: %w", errInvalidCall, err)
	}
	if err := h.checkOwner(in); err != nil {
		return out, fmt.Errorf("%w: %w", errForeign, err)
	}
	return h.dispatch(ctx, call, in)
}

// checkOwner rejects a call for an object of another service, owner or kind.
func (h *Handler) checkOwner(in request) error {
	check := func(id, service, owner string, kind provision.ObjectKind, permitted ...provision.ObjectKind) error {
		switch {
		case service != h.Service || owner != h.Owner:
			return fmt.Errorf("%s: must belong to service %q of owner %q, got service %q of owner %q", id, h.Service, h.Owner, service, owner)
		case kind != provision.KindReplica && (!h.Balancers || !slices.Contains(permitted, kind)):
			return fmt.Errorf("%s: kind must be %s, got %s", id, provision.KindReplica, kind)
		}
		return nil
	}
	// Every argument that is set is checked: dispatch chooses by the call which of them it uses.
	if in.Want != nil {
		if err := check(in.Want.ID, in.Want.Service, in.Want.Owner, in.Want.Kind, provision.KindBalancer, provision.KindFirewall); err != nil {
			return err
		}
	}
	if in.Object != nil {
		if err := check(in.Object.ID, in.Object.Service, in.Object.Owner, in.Object.Kind, provision.KindBalancer); err != nil {
			return err
		}
	}
	switch {
	case in.Name != nil && (in.Name.Service != h.Service || in.Name.Owner != h.Owner || !h.Balancers):
		return fmt.Errorf("%s: must be the name of service %q of owner %q, whose controllers replace balancers; got service %q of owner %q", in.Name.Name, h.Service, h.Owner, in.Name.Service, in.Name.Owner)
	case in.Service != "" && in.Service != h.Service:
		return fmt.Errorf("service must be %q, got %q", h.Service, in.Service)
	}
	return nil
}

// dispatch executes a call.
func (h *Handler) dispatch(ctx context.Context, call CallKind, in request) (out response, err error) {
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
	case call == CallReservations:
		if p, ok := h.Provider.(provision.ReservationReader); ok {
			out.Reservations, err = p.Reservations(ctx, in.Region, in.IDs)
		}
	case call == CallInterruptions && in.Service != "":
		if p, ok := h.Provider.(provision.InterruptionReporter); ok {
			out.Objects, err = p.Interruptions(ctx, in.Region, in.Service)
		}
	case call == CallAdvice && in.Count > 0:
		if p, ok := h.Provider.(provision.CapacityAdvisor); ok {
			out.Advice, err = p.CapacityAdvice(ctx, in.Region, in.Offerings, in.Count)
		}
	case call == CallMoveRecords && in.Name != nil && in.Zone != "" && h.Records != nil:
		err = h.Records.UpdateRecords(ctx, in.Zone, *in.Name)
	default:
		err = fmt.Errorf("%w: %q", errInvalidCall, call)
	}
	return out, err
}

// prices returns the prices of a region; none where its cloud does not publish them.
func (h *Handler) prices(ctx context.Context, region service.Region) ([]provision.Price, error) {
	if p, ok := h.Provider.(provision.Pricer); ok {
		return p.Prices(ctx, region)
	}
	return nil, nil
}

// list lists the objects of a region, or of all regions.
func (h *Handler) list(ctx context.Context, in request) ([]provision.Object, error) {
	if in.Region == "" {
		return h.Provider.List(ctx, in.Service)
	}
	provider, ok := h.ByRegion[in.Region]
	if !ok {
		return nil, fmt.Errorf("listing region %s: this machine has no provider for the region", in.Region)
	}
	return provider.List(ctx, in.Service)
}

// terminate terminates a machine after it has checked in the cloud's list that the machine belongs to this
// service. The handle in the call does not prove that.
func (h *Handler) terminate(ctx context.Context, o provision.Object) error {
	existing, err := h.list(ctx, request{Service: h.Service, Region: o.Region})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(existing, func(e provision.Object) bool { return e.Handle == o.Handle && e.Region == o.Region })
	if i < 0 {
		return nil // already terminated
	}
	if observed := existing[i]; h.checkOwner(request{Object: &observed}) != nil {
		return &provision.OwnedError{Resource: string(observed.Kind) + " " + observed.ID, Where: string(observed.Region), Owner: observed.Owner}
	}
	return h.Provider.Terminate(ctx, o)
}
