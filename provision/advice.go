package provision

import (
	"context"

	"skyserve/internal/service"
)

// CapacityAdvice is a cloud's estimate of whether a spot machine can be launched in a zone. It guarantees
// nothing.
type CapacityAdvice struct {
	Type string
	Zone string
	// SpotScore is AWS's spot placement score, from 1 to 10, higher is better; nil = unknown.
	SpotScore *int
	// Score is the estimate from 0 to 1, higher is better: AWS's score as a share of 10, or Google's
	// obtainability. It is comparable only inside a region; nil = unknown.
	Score *float64
	// Unlikely is true if the cloud considers a launch unlikely.
	Unlikely bool
	// Text is the advice for display: obtainability 0.8.
	Text string
}

// CapacityAdvisor is a provider whose cloud advises on spot capacity.
type CapacityAdvisor interface {
	// CapacityAdvice returns the advice for launching count spot machines on each offering of a region, by type
	// and zone. With an error it returns the advice that could be read. Errors include
	// *AdviceLimitError and *CredentialsError.
	CapacityAdvice(ctx context.Context, region service.Region, offers Offerings, count int) ([]CapacityAdvice, error)
}

// AdviceLimitError reports that a cloud gives no more advice for now.
type AdviceLimitError struct {
	Hint string // the next step
	Err  error
}

func (e *AdviceLimitError) Error() string { return e.Err.Error() }

// Unwrap returns the cloud's error.
func (e *AdviceLimitError) Unwrap() error { return e.Err }

// CapacityAdvice calls the provider of the region's cloud; none where its cloud gives no advice.
func (p MultiCloud) CapacityAdvice(ctx context.Context, region service.Region, offers Offerings, count int) ([]CapacityAdvice, error) {
	provider, err := p.provider(region)
	if err != nil {
		return nil, err
	}
	if advisor, ok := provider.(CapacityAdvisor); ok {
		return advisor.CapacityAdvice(ctx, region, offers, count)
	}
	return nil, nil
}
