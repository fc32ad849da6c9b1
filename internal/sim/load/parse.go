package load

import (
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"skyserve/internal/service"
	"skyserve/internal/sim/workload"
)

// onlyRegion is the region of a target without one.
const onlyRegion = "default"

// ParseTargets parses targets of the form REGION=URL, or a single URL.
func ParseTargets(entries []string) ([]Target, error) {
	var targets []Target
	for _, entry := range entries {
		region, base, found := strings.Cut(entry, "=")
		if !found || strings.Contains(region, "://") { // a URL may contain a =
			region, base = onlyRegion, entry
		}
		u, err := url.Parse(base)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, targetError(entry, base)
		}
		if region == "" || slices.ContainsFunc(targets, func(t Target) bool { return t.Region == region }) {
			return nil, fmt.Errorf("--target %s: each target requires its own region, such as us=%s", entry, base)
		}
		above, _ := service.AboveV1(base)
		targets = append(targets, Target{Region: region, URL: above})
	}
	if len(targets) == 0 {
		return nil, fmt.Errorf("--target: requires at least one REGION=URL")
	}
	return targets, nil
}

// targetError returns the error of an entry whose URL is not one of HTTP, with the likely meaning of a host and port.
func targetError(entry, base string) error {
	rule := "must be REGION=URL, where URL starts with http:// or https://"
	if base == entry || !strings.Contains(entry, "=") {
		rule = "must be a URL that starts with http:// or https://, or REGION=URL"
	}
	prefix := strings.TrimSuffix(entry, base)
	if u, err := url.Parse("http://" + base); err == nil && u.Port() != "" && !strings.Contains(base, "://") {
		rule += "; did you mean " + prefix + u.String() + "?"
	}
	return fmt.Errorf("--target %s: %s", entry, rule)
}

// ParseClients parses numbers of clients of the form REGION=N, or one N for every region. Other regions
// have none.
func ParseClients(entries []string, targets []Target) (map[string]int, error) {
	counts := map[string]int{}
	total := 0
	err := perRegion("clients", entries, targets, func(region, text string) error {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > 1e6 {
			return fmt.Errorf("must be a number of clients from 0 to 1000000, got %q", text)
		}
		counts[region] = n
		total += n
		return nil
	})
	if err == nil && total == 0 {
		err = fmt.Errorf("--clients: must be at least 1")
	}
	return counts, err
}

// ParseWeights parses weights of the form REGION=W. Other regions get no rows; without entries all
// targets have equal weights.
func ParseWeights(entries []string, targets []Target) ([]workload.Weight, error) {
	var weights []workload.Weight
	if len(entries) == 0 {
		for _, t := range targets {
			weights = append(weights, workload.Weight{Region: t.Region, Weight: 1})
		}
		return weights, nil
	}
	total := 0.0
	err := perRegion("weights", entries, targets, func(region, text string) error {
		w, err := strconv.ParseFloat(text, 64)
		if err != nil || !(w >= 0) || math.IsInf(w, 0) {
			return fmt.Errorf("must be a number of at least 0, got %q", text)
		}
		weights = append(weights, workload.Weight{Region: region, Weight: w})
		total += w
		return nil
	})
	if err == nil && !(total > 0) {
		err = fmt.Errorf("--weights: the sum must be greater than 0")
	}
	return weights, err
}

// perRegion parses entries of the form REGION=VALUE, or one VALUE for all targets.
func perRegion(what string, entries []string, targets []Target, take func(region, text string) error) error {
	seen := map[string]bool{}
	for _, entry := range entries {
		region, text, found := strings.Cut(entry, "=")
		regions := []string{region}
		if !found {
			text, regions = entry, Regions(targets)
		}
		for _, region := range regions {
			if !slices.Contains(Regions(targets), region) {
				return fmt.Errorf("--%s %s: unknown region %q: must be one of %s", what, entry, region, strings.Join(Regions(targets), ", "))
			}
			if seen[region] {
				return fmt.Errorf("--%s %s: duplicate region %q", what, entry, region)
			}
			seen[region] = true
			if err := take(region, text); err != nil {
				return fmt.Errorf("--%s %s: %w", what, entry, err)
			}
		}
	}
	return nil
}

// Regions returns the regions of targets, in their order.
func Regions(targets []Target) []string {
	var out []string
	for _, t := range targets {
		out = append(out, t.Region)
	}
	return out
}

// Clients returns the closed-loop clients of a generated workload: counts is the number per region, nil
// = workload.DefaultClients.
func Clients(kind workload.Kind, targets []Target, counts map[string]int, seed uint64) ([]ClosedLoopClient, error) {
	heavy := workload.HeavyRegion(Regions(targets))
	var clients []ClosedLoopClient
	for _, t := range targets {
		n := workload.DefaultClients(kind, t.Region == heavy)
		if counts != nil {
			n = counts[t.Region]
		}
		for i := range n {
			c, err := workload.NewClient(kind, workload.Options{Seed: seed, Region: t.Region, Client: i, Heavy: t.Region == heavy})
			if err != nil {
				return nil, err
			}
			clients = append(clients, ClosedLoopClient{Region: t.Region, Client: c})
		}
	}
	return clients, nil
}
