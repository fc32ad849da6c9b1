package load

import (
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"skyserve/internal/sim/workload"
)

// onlyRegion is the region of a target that is given without one.
const onlyRegion = "default"

// ParseTargets reads targets written as REGION=URL, or as one URL alone.
func ParseTargets(entries []string) ([]Target, error) {
	var targets []Target
	for _, entry := range entries {
		region, base, found := strings.Cut(entry, "=")
		if !found || strings.Contains(region, "://") { // a URL may have a = of its own
			region, base = onlyRegion, entry
		}
		u, err := url.Parse(base)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, fmt.Errorf("target %q: want REGION=URL with an http or https URL", entry)
		}
		if region == "" || slices.ContainsFunc(targets, func(t Target) bool { return t.Region == region }) {
			return nil, fmt.Errorf("target %q: want a region of its own, as in us=%s", entry, base)
		}
		targets = append(targets, Target{Region: region, URL: strings.TrimSuffix(strings.TrimRight(base, "/"), "/v1")})
	}
	if len(targets) == 0 {
		return nil, fmt.Errorf("target: want at least one REGION=URL")
	}
	return targets, nil
}

// ParseClients reads numbers of clients written as REGION=N, or as one N for
// every region. Regions that are not named have none.
func ParseClients(entries []string, targets []Target) (map[string]int, error) {
	counts := map[string]int{}
	total := 0
	err := perRegion("clients", entries, targets, func(region, text string) error {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > 1e6 {
			return fmt.Errorf("want a number of clients, got %q", text)
		}
		counts[region] = n
		total += n
		return nil
	})
	if err == nil && total == 0 {
		err = fmt.Errorf("clients: want at least one")
	}
	return counts, err
}

// ParseWeights reads shares written as REGION=W. Regions that are not named get
// no rows; without entries every target gets an equal share.
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
			return fmt.Errorf("want a number that is zero or more, got %q", text)
		}
		weights = append(weights, workload.Weight{Region: region, Weight: w})
		total += w
		return nil
	})
	if err == nil && !(total > 0) {
		err = fmt.Errorf("weights: must add up to more than zero")
	}
	return weights, err
}

// perRegion takes entries written as REGION=VALUE, or one VALUE for every target.
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
				return fmt.Errorf("%s %q: region %q has no target: want one of %s", what, entry, region, strings.Join(Regions(targets), ", "))
			}
			if seen[region] {
				return fmt.Errorf("%s %q: region %q is named twice", what, entry, region)
			}
			seen[region] = true
			if err := take(region, text); err != nil {
				return fmt.Errorf("%s %q: %w", what, entry, err)
			}
		}
	}
	return nil
}

// Regions are the regions of targets, in their order.
func Regions(targets []Target) []string {
	var out []string
	for _, t := range targets {
		out = append(out, t.Region)
	}
	return out
}

// Clients makes the closed-loop clients of a generated workload: counts says how
// many a region has, nil = workload.DefaultClients.
func Clients(kind workload.Kind, targets []Target, counts map[string]int, seed uint64) ([]Client, error) {
	heavy := workload.HeavyRegion(Regions(targets))
	var clients []Client
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
			clients = append(clients, Client{Region: t.Region, Client: c})
		}
	}
	return clients, nil
}
