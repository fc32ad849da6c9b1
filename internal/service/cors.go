package service

import (
	"fmt"
	"strings"
	"time"
)

// CORS lets web pages of other origins use the public API from browsers (the CORS protocol of the Fetch
// standard). Clients that are not browsers do not need it.
type CORS struct {
	// Origins are the origins of the pages, such as https://app.example.com; AnyOrigin = every page.
	Origins []string `yaml:"origins" json:"origins"`
	// MaxAge is the time for which browsers may cache the permission.
	MaxAge time.Duration `yaml:"max_age,omitempty" json:"max_age,omitempty"`
}

// AnyOrigin is the value of CORS.Origins that allows every page.
const AnyOrigin = "*"

// Check returns an error for an invalid origin or time, without the path.
func (c *CORS) Check() error {
	if len(c.Origins) == 0 {
		return fmt.Errorf("origins: must contain at least one origin")
	}
	for i, origin := range c.Origins {
		if problem := originProblem(origin); problem != "" {
			return fmt.Errorf("origins[%d]: %s, got %q", i, problem, origin)
		}
	}
	show := func(x float64) string { return FormatDuration(time.Duration(x)) }
	if problem := rules["CORS.max_age"].limit.problem(float64(c.MaxAge), show); c.MaxAge != 0 && problem != "" {
		return fmt.Errorf("max_age: %s, got %s", problem, c.MaxAge)
	}
	return nil
}

// originProblem returns the problem of an origin; empty if it has none. Browsers compare origins as
// text, so another spelling would never match.
func originProblem(origin string) string {
	if !formOrigin.matches(origin) {
		return "must be " + formOrigin.description
	}
	switch {
	case strings.HasPrefix(origin, "http://") && strings.HasSuffix(origin, ":80"):
		return "must omit :80, because browsers omit it"
	case strings.HasPrefix(origin, "https://") && strings.HasSuffix(origin, ":443"):
		return "must omit :443, because browsers omit it"
	}
	return ""
}
