package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"skyserve/internal/agent"
	"skyserve/internal/controller/deploy"
	"skyserve/provision"
)

// replaceDead adds replacements to the plan: of machines named with --replace, and of machines
// that do not respond.
func (u *upRun) replaceDead(ctx context.Context) error {
	if u.filter != nil { // a change of replica counts replaces nothing
		return nil
	}
	replaced, err := u.handlesToReplace()
	if err != nil {
		return err
	}
	if u.replaceAfter > 0 {
		h := deploy.Delivery{
			Service: u.spec.Name, Party: u.operator.party, Machines: u.changes.Observed,
			OnChange: func(id string, s agent.Status) { u.printLine("%s %s %s", id, s.Phase, s.Reason) },
		}
		dead, unsure := h.FindDead(ctx, u.replaceAfter)
		if err := ctx.Err(); err != nil {
			return err
		}
		unsure = slices.DeleteFunc(unsure, func(id string) bool { return slices.Contains(u.replace, id) })
		if len(unsure) > 0 {
			u.printLine("%s: not responding, and no other balancer responds, so the network may be at fault; if it is not: skyserve up %s --replace %s",
				strings.Join(unsure, ", "), u.file, strings.Join(unsure, " --replace "))
		}
		for handle, why := range dead {
			if replaced[handle] == "" {
				replaced[handle] = why
			}
		}
	}
	if len(replaced) == 0 {
		return nil
	}
	u.changes, err = u.deployer.PlanReplacing(u.changes, replaced)
	return err
}

// handlesToReplace returns the machines of --replace, by handle.
func (u *upRun) handlesToReplace() (map[string]string, error) {
	machines := map[string]string{}
	for _, id := range u.replace {
		if strangers := u.strangersWithID(id); len(strangers) > 0 { // keep the enrolled machine of this id
			for _, o := range strangers {
				machines[o.Handle] = deploy.ReplacedOnRequest
			}
			continue
		}
		i := slices.IndexFunc(u.changes.Observed, func(o provision.Object) bool { return o.ID == id && o.Offering != nil && o.TerminatedReason == "" })
		if i < 0 {
			return nil, notFound(fmt.Errorf("--replace: %s has no running machine %q", u.spec.Name, id), "'skyserve status "+u.spec.Name+"' lists them")
		}
		machines[u.changes.Observed[i].Handle] = deploy.ReplacedOnRequest
	}
	return machines, nil
}
