package deploy

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
	"skyserve/provision/cloud"
)

const (
	// bootTimeout is the maximum time from a machine's launch until its agent responds: drivers are
	// in the image, and the binary has about 60 MB. Clocks of clouds and operators differ by
	// seconds; doctor reports larger differences.
	bootTimeout = 10 * time.Minute
	// localBootTimeout is bootTimeout on this computer, where a machine is a process: its agent responds within a second,
	// and later only on a busy computer.
	localBootTimeout = 10 * time.Second
	// unresponsivePollInterval is the polling interval of an unresponsive machine.
	unresponsivePollInterval = 2 * time.Second
)

// FindDead returns the machines that are running according to their cloud but do not respond, by handle
// with the reason. Such a machine had time to boot, was polled for the whole timeout, and another
// machine responds, so that the network is not the cause: for a balancer, another balancer; for a
// replica, a balancer of its region, through which it is reached. If all machines respond, FindDead
// returns after one request to each. undecided are the balancers that do not respond while no other
// balancer does: the network may be the cause.
func (dl *Delivery) FindDead(ctx context.Context, timeout time.Duration) (dead map[string]string, undecided []string) {
	seen := dl.ReadStatuses(ctx)
	suspects := dl.unresponsiveAmong(dl.Machines, seen)
	if len(suspects) == 0 {
		return nil, nil
	}
	start := time.Now()
	for _, o := range dl.provenDead(suspects, seen) {
		reason := fmt.Sprintf("for a response; retrying for up to %s: %v", timeout, seen[o.ID].Err)
		dl.reportStatus(o.ID, agent.Status{Phase: agent.PhaseWaiting, Reason: reason})
	}
	for len(dl.provenDead(suspects, seen)) > 0 && time.Since(start) < timeout && sleep(ctx, unresponsivePollInterval) {
		seen = dl.ReadStatuses(ctx)
		suspects = dl.unresponsiveAmong(suspects, seen)
	}
	if ctx.Err() != nil {
		return nil, nil
	}
	dead = map[string]string{}
	for _, o := range dl.provenDead(suspects, seen) {
		dead[o.Handle] = fmt.Sprintf("no response for %s", time.Since(start).Round(time.Second))
	}
	for _, o := range suspects {
		if _, ok := dead[o.Handle]; !ok && o.Kind == provision.KindBalancer {
			undecided = append(undecided, o.ID)
		}
	}
	return dead, undecided
}

// unresponsiveAmong returns the machines that had time to boot and do not respond.
func (dl *Delivery) unresponsiveAmong(machines []provision.Object, seen map[string]AgentReport) []provision.Object {
	var out []provision.Object
	for _, o := range machines {
		s, polled := seen[o.ID]
		if polled && o.TerminatedReason == "" && isUnreachable(s.Err) && !o.Started.IsZero() && time.Since(o.Started) > bootTimeoutOf(o) {
			out = append(out, o)
		}
	}
	return out
}

// bootTimeoutOf returns the maximum time from a machine's launch until its agent responds.
func bootTimeoutOf(o provision.Object) time.Duration {
	if cloud.RunsOnThisComputer(o.Region) {
		return localBootTimeout
	}
	return bootTimeout
}

// provenDead returns the unresponsive machines for which the network is ruled out as the cause.
func (dl *Delivery) provenDead(suspects []provision.Object, seen map[string]AgentReport) []provision.Object {
	var out []provision.Object
	for _, o := range suspects {
		if slices.ContainsFunc(dl.Machines, func(b provision.Object) bool {
			s, polled := seen[b.ID]
			return polled && !isUnreachable(s.Err) && b.Kind == provision.KindBalancer && (o.Kind == provision.KindBalancer || b.Region == o.Region)
		}) {
			out = append(out, o)
		}
	}
	return out
}

// isUnreachable reports whether an error means that the machine did not respond.
func isUnreachable(err error) bool {
	var timeout net.Error
	var refusal *agent.StatusError
	switch {
	case err == nil || errors.Is(err, identity.ErrUntrusted) || errors.Is(err, identity.ErrPin):
		return false
	case errors.As(err, &refusal):
		return refusal.Status == http.StatusBadGateway // the balancer cannot connect to the replica
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return true
	}
	for _, broken := range []error{syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EPIPE, io.EOF} {
		if errors.Is(err, broken) {
			return true
		}
	}
	return false
}

// PlanReplacing returns a plan that also replaces machines, given by handle with the reason. A machine
// that is no longer desired is only removed. Machines whose firewall is about to change are kept,
// since the firewall may be the reason that they do not respond.
func (dp *Deployer) PlanReplacing(p *MachinePlan, machines map[string]string) (*MachinePlan, error) {
	dp.replaced = maps.Clone(machines)
	for _, c := range p.Changes {
		if c.Kind() != provision.KindFirewall || c.Action == provision.ActionTerminate {
			continue
		}
		for _, o := range p.Observed {
			if o.Region == c.Region() && dp.replaced[o.Handle] != ReplacedOnRequest {
				delete(dp.replaced, o.Handle)
			}
		}
	}
	return dp.planAfterRun(p.Observed, nil)
}

// ReplacedOnRequest is the reason for replacing a machine that the operator selected with --replace.
const ReplacedOnRequest = "replaced on request"

// clearReplacedHashes returns a copy of objects in which the machines to replace have no hashes, so that they
// differ from the desired state.
func (dp *Deployer) clearReplacedHashes(have []provision.Object) []provision.Object {
	have = slices.Clone(have)
	for i, o := range have {
		if _, isReplaced := dp.replaced[o.Handle]; isReplaced && o.Handle != "" {
			have[i].SpecHash, have[i].ImmutableHash = "", ""
		}
	}
	return have
}

// replacementReason returns why PlanReplacing replaces the machine of a change; ok is false for any other change. Such a
// machine must be terminated before its replacement is launched: if both have the same ID and configuration,
// provision.Provider.Launch returns the machine that still runs.
func (dp *Deployer) replacementReason(c provision.Change) (reason string, ok bool) {
	reason, ok = dp.replaced[c.Observed.Handle]
	return reason, ok && c.Action == provision.ActionReplace
}
