package service

import "slices"

// ScalesToZero reports whether a model may have no replica and gets one when a request arrives: its
// replicas.min is 0 in every region, a region may have one, and a strategy other than manual changes
// the number of replicas. A model in a static region never scales to zero: its machines always run.
func (s *Spec) ScalesToZero(model string) bool {
	if s.Autoscale.Strategy == "" || s.Autoscale.Strategy == StrategyManual {
		return false
	}
	return s.startsEmpty(model)
}

// startsEmpty reports whether `up` launches no replica of a model, although regions may have some.
func (s *Spec) startsEmpty(model string) bool {
	mayHave := false
	for i := range s.Regions {
		b := s.BoundsFor(model, s.Regions[i].Name)
		if b.Min > 0 || b.Max > 0 && s.Regions[i].Name.Cloud() == CloudStatic {
			return false
		}
		mayHave = mayHave || b.Max > 0
	}
	return mayHave
}

// neverServes reports whether no replica and no fallback can ever serve a model.
func (s *Spec) neverServes(m *Model) bool {
	return len(m.Fallback) == 0 && !slices.ContainsFunc(s.Regions, func(r RegionSpec) bool {
		return s.BoundsFor(m.Name, r.Name).Max > 0 || r.DiscoversReplicas()
	})
}

// ModelsStartingEmpty returns the models for which `up` launches no replica, in the order of
// service.yaml: onDemand get one when a request arrives (ScalesToZero), byHand only from an operator.
func (s *Spec) ModelsStartingEmpty() (onDemand, byHand []string) {
	for i := range s.Models {
		switch name := s.Models[i].Name; {
		case s.ScalesToZero(name):
			onDemand = append(onDemand, name)
		case s.startsEmpty(name):
			byHand = append(byHand, name)
		}
	}
	return onDemand, byHand
}
