package plan

import (
	"errors"
	"fmt"
	"strings"

	"skyserve/forecast"
	"skyserve/internal/service"
)

// CheckHistory returns a warning if a part of the history is not load of the service, with the share and the reasons. It
// fails if no part is: a plan from such a history would scale every model to its minimum.
func CheckHistory(spec *service.Spec, h *forecast.History) (warning string, err error) {
	if h.Minutes == 0 {
		return "", errors.New("the history is empty")
	}
	var r review
	r.setNames(spec)
	used, all, isUsed := 0.0, 0.0, false
	for _, s := range h.Series {
		tokens := sumKnown(s.Values)
		all += tokens
		if _, regions := r.endpointsOf(s.SeriesKey); len(regions) > 0 {
			used, isUsed = used+tokens, true
		}
	}
	var reasons []string
	for _, text := range r.assumptions {
		if reason, ignored := strings.CutSuffix(text, historyIgnored); ignored {
			reasons = append(reasons, reason)
		}
	}
	const shown = 3
	text := strings.Join(reasons[:min(len(reasons), shown)], ", ")
	if more := len(reasons) - shown; more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	switch {
	case !isUsed:
		return "", fmt.Errorf("the history has no load of the service: %s", text)
	case used == all:
		return "", nil
	}
	return fmt.Sprintf("%.1f %% of its prompt tokens are ignored: %s", 100*(1-used/all), text), nil
}

// historyIgnored ends the assumption about a series that belongs to no model or region.
const historyIgnored = ": its history is ignored"

// setNames sets the service, and the models and regions of its problem.
func (r *review) setNames(spec *service.Spec) {
	r.spec = spec
	for i := range spec.Models {
		r.problem.Models = append(r.problem.Models, spec.Models[i].Name)
	}
	for i := range spec.Regions {
		r.problem.Regions = append(r.problem.Regions, string(spec.Regions[i].Name))
	}
}

// endpointsOf returns the indexes of the service's model and regions that a series of a history belongs to. It belongs to
// none without regions; the reason is then an assumption.
func (r *review) endpointsOf(key forecast.SeriesKey) (model int, regions []int) {
	model = r.seriesModel(key.Model)
	switch {
	case model < 0 && key.Model == service.AnyModel:
		r.assume("the history has no models, and the service has %d"+historyIgnored, len(r.spec.Models))
		return model, nil
	case model < 0:
		r.assume("the service has no model %s"+historyIgnored, key.Model)
		return model, nil
	}
	if regions = r.regionsOf(key.Region); len(regions) == 0 {
		r.assume("the service has no region %s"+historyIgnored, key.Region)
	}
	return model, regions
}

// seriesModel returns the index of the model that a history's model denotes: the model with that name or alias; for
// AnyModel, the service's only one. It is -1 without such a model.
func (r *review) seriesModel(name string) int {
	if i := r.modelIndex(name); i >= 0 || name != service.AnyModel || len(r.problem.Models) > 1 {
		return i
	}
	r.assume("the history has no models: its load is that of %s", r.problem.Models[0])
	return 0
}

// regionsOf returns the indexes of the service's regions that a history's region denotes: the region itself; for a name
// without a cloud, the one region with that name; for AnyRegion, all.
func (r *review) regionsOf(region service.Region) []int {
	if j := r.regionIndex(region); j >= 0 {
		return []int{j}
	}
	var all, sameName []int
	for j, name := range r.problem.Regions {
		all = append(all, j)
		if service.Region(name).ShortName() == string(region) {
			sameName = append(sameName, j)
		}
	}
	if region == service.AnyRegion {
		if len(all) > 1 {
			r.assume("the history has no regions: its load is split evenly over %d regions", len(all))
		}
		return all
	}
	if len(sameName) == 1 {
		return sameName
	}
	return nil
}
