package main

import (
	"fmt"
	"strings"

	"skyserve/internal/service"
	"skyserve/plan"
)

// checkSurvive returns a usage error where --survive names a region that the service does not have.
func (o *planOptions) checkSurvive(spec *service.Spec) error {
	if spec == nil {
		return nil
	}
	name, unknown := plan.UnknownSurvived(spec, o.review.Survive)
	if !unknown {
		return nil
	}
	names := append([]string{plan.SurviveAny}, regionNames(spec)...)
	return usage(fmt.Errorf("--survive: must be one of %s, got %q", strings.Join(names, ", "), name), didYouMean(name, names))
}
