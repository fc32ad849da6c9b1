package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"syscall"
	"time"

	"skyserve/internal/agent"
	"skyserve/internal/identity"
	"skyserve/provision"
)

const (
	// bootTimeout is how long a machine may take from its launch until its agent answers:
	// drivers are in the image, and the program is some 60 MB. Clocks of clouds and of
	// operators differ by seconds, or doctor says so.
	bootTimeout = 10 * time.Minute
	// silentEvery is how often a machine that answered nothing is asked again.
	silentEvery = 2 * time.Second
)

// Dead finds the machines that run for their cloud and answer nothing, by handle with the
// reason: they had time to boot, were asked for as long as timeout allows, and another
// machine proves that the network between is not to blame: for a balancer any other one,
// for a replica a balancer of its region, by way of which it is reached. Where nothing is
// silent it returns after one question to each machine. unsure are the balancers that
// answer nothing while no other machine does.
func (h *Handover) Dead(ctx context.Context, timeout time.Duration) (dead map[string]string, unsure []string) {
	seen := h.Look(ctx)
	suspects := h.silentAmong(h.Have, seen)
	if len(suspects) == 0 {
		return nil, nil
	}
	begun := time.Now()
	for _, o := range h.proven(suspects, seen) {
		reason := fmt.Sprintf("it answers nothing, and is asked again for up to %s: %v", timeout, seen[o.ID].Err)
		h.tell(o.ID, agent.Status{Phase: agent.PhaseWaiting, Reason: reason})
	}
	for len(h.proven(suspects, seen)) > 0 && time.Since(begun) < timeout && pause(ctx, silentEvery) {
		seen = h.Look(ctx)
		suspects = h.silentAmong(suspects, seen)
	}
	if ctx.Err() != nil {
		return nil, nil
	}
	dead = map[string]string{}
	for _, o := range h.proven(suspects, seen) {
		dead[o.Handle] = fmt.Sprintf("answers nothing for %s", time.Since(begun).Round(time.Second))
	}
	for _, o := range suspects {
		if _, is := dead[o.Handle]; !is && o.Kind == provision.KindBalancer {
			unsure = append(unsure, o.ID)
		}
	}
	return dead, unsure
}

// silentAmong are those of some machines that had time to boot and answer nothing.
func (h *Handover) silentAmong(machines []provision.Object, seen map[string]Seen) []provision.Object {
	var out []provision.Object
	for _, o := range machines {
		s, asked := seen[o.ID]
		if asked && o.Gone == "" && silent(s.Err) && !o.Started.IsZero() && time.Since(o.Started) > bootTimeout {
			out = append(out, o)
		}
	}
	return out
}

// proven are those of silent machines whose own fault it is.
func (h *Handover) proven(suspects []provision.Object, seen map[string]Seen) []provision.Object {
	var out []provision.Object
	for _, o := range suspects {
		if slices.ContainsFunc(h.Have, func(b provision.Object) bool {
			s, asked := seen[b.ID]
			return asked && !silent(s.Err) && b.Kind == provision.KindBalancer && (o.Kind == provision.KindBalancer || b.Region == o.Region)
		}) {
			out = append(out, o)
		}
	}
	return out
}

// silent says whether an error is that nobody answered, rather than an answer.
func silent(err error) bool {
	var late net.Error
	var refusal *agent.Refusal
	switch {
	case err == nil || errors.Is(err, identity.ErrStranger) || errors.Is(err, identity.ErrPin):
		return false
	case errors.As(err, &refusal):
		return refusal.Status == http.StatusBadGateway // a balancer that passes on to nobody
	case errors.As(err, &late) && late.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return true
	}
	for _, broken := range []error{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EPIPE, io.EOF} {
		if errors.Is(err, broken) {
			return true
		}
	}
	return false
}

// Replacing is a plan that puts others in the place of machines, too; they are by handle,
// with the reason. One that is no longer wanted only goes. Machines whose firewall is about
// to change are left: that may be why they answer nothing.
func (f *Fleet) Replacing(p *Plan, machines map[string]string) (*Plan, error) {
	f.replaced = maps.Clone(machines)
	for _, c := range p.Changes {
		if c.Kind() != provision.KindFirewall || c.Action == provision.ActionTerminate {
			continue
		}
		for _, o := range p.Have {
			if o.Region == c.Region() && f.replaced[o.Handle] != Asked {
				delete(f.replaced, o.Handle)
			}
		}
	}
	return f.planFor(p.Have, nil)
}

// Asked is why a machine is replaced that its operator named.
const Asked = "replaced on request"

// unlike are objects with those that are to be replaced made unlike anything wanted.
func (f *Fleet) unlike(have []provision.Object) []provision.Object {
	have = slices.Clone(have)
	for i, o := range have {
		if _, goes := f.replaced[o.Handle]; goes && o.Handle != "" {
			have[i].Spec, have[i].Fixed = "", ""
		}
	}
	return have
}

// replacement says whether a change puts another machine in the place of one that has to
// go first, since both would be the same to their cloud.
func (f *Fleet) replacement(c provision.Change) (reason string, is bool) {
	reason, is = f.replaced[c.Have.Handle]
	return reason, is && c.Action == provision.ActionReplace
}
