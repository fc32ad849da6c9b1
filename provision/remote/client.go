package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
)

// CallFunc sends the body of a call to a machine in the cloud and returns the body of its response. An error
// means that the machine did not respond, or rejected the call.
type CallFunc func(ctx context.Context, call CallKind, body []byte) ([]byte, error)

// Client is the provider of a cloud through machines there. It implements provision.Provider,
// provision.KeyAttestor, provision.Pricer and provision.RecordUpdater; errors of the cloud keep their types.
type Client struct {
	// Cloud is its name, gcp.
	Cloud string
	// Machines returns the machines that can be called now, in the order of attempts. Every call is
	// idempotent, so the next machine is called when one does not respond.
	Machines func() []CallFunc
}

var (
	_ provision.Provider    = (*Client)(nil)
	_ provision.KeyAttestor = (*Client)(nil)
	_ provision.Pricer      = (*Client)(nil)

	_ provision.ReservationReader    = (*Client)(nil)
	_ provision.InterruptionReporter = (*Client)(nil)
	_ provision.CapacityAdvisor      = (*Client)(nil)
	_ provision.RecordUpdater        = (*Client)(nil)
)

// ErrNoMachine reports that no balancer of the service in a cloud responds.
var ErrNoMachine = errors.New("no balancer in this cloud responds")

// Offerings implements provision.Provider.
func (c *Client) Offerings(ctx context.Context, region service.Region) (provision.Offerings, error) {
	r, err := c.call(ctx, CallOfferings, request{Region: region})
	return r.Offerings, err
}

// List implements provision.Provider, for the service of the called machines.
func (c *Client) List(ctx context.Context, service string) ([]provision.Object, error) {
	r, err := c.call(ctx, CallList, request{Service: service})
	return r.Objects, err
}

// ListIn lists one region only, so that a failure of another region does not fail the call.
func (c *Client) ListIn(ctx context.Context, service string, region service.Region) ([]provision.Object, error) {
	r, err := c.call(ctx, CallList, request{Service: service, Region: region})
	return r.Objects, err
}

// Launch implements provision.Provider, for the kinds that the called machines permit.
func (c *Client) Launch(ctx context.Context, w provision.Desired) (provision.Object, error) {
	r, err := c.call(ctx, CallLaunch, request{Want: &w})
	return r.Object, err
}

// Terminate implements provision.Provider, for the kinds that the called machines permit.
func (c *Client) Terminate(ctx context.Context, o provision.Object) error {
	_, err := c.call(ctx, CallTerminate, request{Object: &o})
	return err
}

// Fingerprint implements provision.KeyAttestor.
func (c *Client) Fingerprint(ctx context.Context, o provision.Object) (string, error) {
	r, err := c.call(ctx, CallFingerprint, request{Object: &o})
	return r.Fingerprint, err
}

// Prices implements provision.Pricer.
func (c *Client) Prices(ctx context.Context, region service.Region) ([]provision.Price, error) {
	r, err := c.call(ctx, CallPrices, request{Region: region})
	return r.Prices, err
}

// Reservations implements provision.ReservationReader.
func (c *Client) Reservations(ctx context.Context, region service.Region, ids []string) ([]provision.Reservation, error) {
	r, err := c.call(ctx, CallReservations, request{Region: region, IDs: ids})
	return r.Reservations, err
}

// Interruptions implements provision.InterruptionReporter.
func (c *Client) Interruptions(ctx context.Context, region service.Region, service string) ([]provision.Object, error) {
	r, err := c.call(ctx, CallInterruptions, request{Region: region, Service: service})
	return r.Objects, err
}

// CapacityAdvice implements provision.CapacityAdvisor; with an error it returns no advice.
func (c *Client) CapacityAdvice(ctx context.Context, region service.Region, offers provision.Offerings, count int) ([]provision.CapacityAdvice, error) {
	r, err := c.call(ctx, CallAdvice, request{Region: region, Offerings: offers, Count: count})
	return r.Advice, err
}

// UpdateRecords implements provision.RecordUpdater.
func (c *Client) UpdateRecords(ctx context.Context, zoneID string, n provision.PublicName) error {
	_, err := c.call(ctx, CallMoveRecords, request{Name: &n, Zone: zoneID})
	return err
}

// call calls one machine after the other until one responds.
func (c *Client) call(ctx context.Context, call CallKind, in request) (out response, err error) {
	body, err := json.Marshal(in)
	if err != nil {
		return out, fmt.Errorf("calling %s in %s: %w", call, c.Cloud, err)
	}
	errs := []error{ErrNoMachine}
	for _, machine := range c.Machines() {
		text, err := callWithTimeout(ctx, machine, call, body)
		if err != nil {
			if errs = append(errs, err); ctx.Err() != nil {
				break
			}
			continue
		}
		if err := json.Unmarshal(text, &out); err != nil {
			return response{}, fmt.Errorf("calling %s in %s: decoding the response: %w", call, c.Cloud, err)
		}
		if out.Error != nil {
			return response{Prices: out.Prices}, out.Error.toError()
		}
		return out, nil
	}
	return out, fmt.Errorf("calling %s in %s: %w", call, c.Cloud, errors.Join(errs...))
}

// timeout is the maximum time until a machine responds: a little longer than the timeout of the call on the
// machine.
const timeout = callTimeout + 10*time.Second

// callWithTimeout calls one machine with a timeout.
func callWithTimeout(ctx context.Context, machine CallFunc, call CallKind, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no response within %s", timeout))
	defer cancel()
	text, err := machine(ctx, call, body)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return text, err
}
