package service

import "slices"

// Split is a model name whose requests are divided among models by weight. A session stays with one
// model while the weights do not change.
type Split struct {
	Name string `yaml:"name" json:"name"`
	// Weights are the weights of models or adapters; 0 = it receives no new requests.
	Weights map[string]int `yaml:"weights" json:"weights"`
}

// checkSplits checks that the names of splits are unique, and that they divide among models.
func (c *checker) checkSplits() {
	claimed := map[string]bool{}
	var targets []string
	for _, m := range c.spec.Models {
		targets = append(append(targets, m.Name), m.Engine.Adapters()...)
		for _, a := range m.Aliases {
			claimed[a] = true
		}
	}
	for _, name := range targets {
		claimed[name] = true
	}
	for i, s := range c.spec.Splits {
		p := path("splits").index(i)
		if claimed[s.Name] && s.Name != "" {
			c.reportProblem(p.key("name"), "duplicates the name of a model, alias, adapter or split")
		}
		claimed[s.Name] = true
		total := 0
		for _, name := range sortedKeys(s.Weights) {
			total += s.Weights[name]
			if !slices.Contains(targets, name) {
				c.reportAtPath(p.key("weights").key(name), Error{Problem: "is not a model or adapter of this service", Suggestion: didYouMean(name, targets, "the models are")})
			}
		}
		if at := p.key("weights"); total == 0 && c.valid(at) && c.at[at] != nil {
			c.reportAtPath(at, Error{Problem: "must contain a weight above 0"})
		}
	}
}
