package lbd

import (
	"fmt"
	"maps"
	"slices"

	"skyserve/internal/service"
)

// checkSplits checks that splits have names of their own, and divide among models of the service.
func checkSplits(p *problems, cfg service.BalancerConfig) {
	served, taken := map[string]bool{}, map[string]bool{}
	for _, m := range cfg.Models {
		for _, name := range append([]string{m.Name}, m.LoRA...) {
			served[name], taken[name] = true, true
		}
		for _, alias := range m.Aliases {
			taken[alias] = true
		}
	}
	for i, s := range cfg.Splits {
		key := fmt.Sprintf("splits[%d]", i)
		if s.Name == "" || taken[s.Name] {
			p.addProblem(key+".name", fmt.Sprintf("must be a name that no model, alias, adapter or other split has, got %q", s.Name), "")
		}
		taken[s.Name] = true
		total := 0
		for _, name := range slices.Sorted(maps.Keys(s.Weights)) {
			if w := s.Weights[name]; !served[name] || w < 0 {
				p.addProblem(key+".weights."+name, fmt.Sprintf("must be a model or adapter of models; its weight must be at least 0, got %d", w), "")
			}
			total += max(s.Weights[name], 0)
		}
		if total == 0 {
			p.addProblem(key+".weights", "must contain a weight above 0", "")
		}
	}
}
