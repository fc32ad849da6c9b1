package provision

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"skyserve/internal/service"
)

// AdviseLaunches returns the clouds' advice on the machines to launch whose first offering is spot. Machines whose first
// offerings have the same region and instance type share one piece of advice, that of the best zone. It is a warning
// where a launch is unlikely or the advice could not be read. Clouds give no advice on other machines: only a launch
// shows their capacity.
func AdviseLaunches(ctx context.Context, p MultiCloud, machines []Desired) []LaunchCheck {
	type kind struct {
		region   service.Region
		instance string
	}
	counts, zones := map[kind]int{}, map[kind]Offerings{}
	var kinds []kind
	for _, w := range machines {
		if w.Machine == nil || len(w.Offerings) == 0 || w.Offerings[0].Capacity != service.CapacitySpot {
			continue
		}
		first := w.Offerings[0]
		k := kind{first.Region, first.Type}
		if counts[k]++; counts[k] == 1 {
			kinds = append(kinds, k)
			zones[k] = slices.DeleteFunc(slices.Clone(w.Offerings), func(o Offering) bool {
				return o.Region != first.Region || o.Type != first.Type || o.Capacity != first.Capacity
			})
		}
	}
	slices.SortFunc(kinds, func(a, b kind) int {
		return cmp.Or(cmp.Compare(a.region, b.region), cmp.Compare(a.instance, b.instance))
	})
	checks := []LaunchCheck{}
	for _, k := range kinds {
		what := fmt.Sprintf("capacity of %d %s (spot)", counts[k], k.instance)
		advice, err := p.CapacityAdvice(ctx, k.region, zones[k], counts[k])
		c := LaunchCheck{CheckResult: CheckResult{Where: string(k.region), OK: true}}
		switch best := bestAdvice(advice); {
		case err != nil:
			c.Message, c.Warning, c.Hint = fmt.Sprintf("%s: unknown: %v", what, err), true, HintOf(err)
		case best == nil:
			continue
		default:
			c.Message = fmt.Sprintf("%s: %s in %s", what, best.Text, best.Zone)
			if best.Unlikely {
				c.Warning, c.Message = true, c.Message+", the best zone: a launch is unlikely"
				c.Hint = "add capacity types, GPUs or regions; 'skyserve offers' compares them"
			}
		}
		checks = append(checks, c)
	}
	return checks
}

// HintOf returns the next step of an error about credentials or of CapacityAdvice; empty if it has none.
func HintOf(err error) string {
	var limit *AdviceLimitError
	var denied *CredentialsError
	switch {
	case errors.As(err, &limit):
		return limit.Hint
	case errors.As(err, &denied):
		return denied.Hint
	}
	return ""
}

// bestAdvice returns the advice with the highest score, the first of equal ones; nil without any score.
func bestAdvice(all []CapacityAdvice) *CapacityAdvice {
	var best *CapacityAdvice
	for i, a := range all {
		if a.Score != nil && (best == nil || *a.Score > *best.Score) {
			best = &all[i]
		}
	}
	return best
}
