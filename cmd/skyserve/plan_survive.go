package main

import (
	"fmt"
	"strings"

	"skyserve/internal/service"
	"skyserve/plan"
)

// checkSurvive completes the short names of regions in --survive, and returns a usage error for a region that the
// service does not have.
func (o *planOptions) checkSurvive(spec *service.Spec) error {
	if spec == nil {
		return nil
	}
	for i, name := range o.review.Survive {
		o.review.Survive[i] = fullRegionName(spec, name)
	}
	name, unknown := plan.UnknownSurvived(spec, o.review.Survive)
	if !unknown {
		return nil
	}
	names := append([]string{plan.SurviveAny}, regionNames(spec)...)
	return usage(fmt.Errorf("--survive: must be one of %s, got %q", strings.Join(names, ", "), name), didYouMean(name, names))
}

// fullRegionName returns the name of the only region with a short name; any other name is unchanged.
func fullRegionName(spec *service.Spec, short string) string {
	full := short
	for _, name := range regionNames(spec) {
		switch {
		case name == short || service.Region(name).ShortName() == short && full != short:
			return short
		case service.Region(name).ShortName() == short:
			full = name
		}
	}
	return full
}
