package gcp

import (
	"regexp"

	"skyserve/provision"
)

// The codes and messages of Google Cloud's errors, with which this package decides what to do.
//
// Sources: calls return reasons in camel case (docs.cloud.google.com/compute/docs/reference/rest/v1, "Errors";
// docs.cloud.google.com/storage/docs/json_api/v1/status-codes, read in November 2026), operations codes in capitals,
// of which Google publishes no list: ZONE_RESOURCE_POOL_EXHAUSTED, its form with details, and QUOTA_EXCEEDED occur in
// public logs and scripts (November 2026), the others are assumed. The messages are those of public logs; that
// they do not change is assumed.

// noCapacity maps the cloud's codes for a lack of capacity or quota to their scope. Calls return them in
// camel case (quotaExceeded), operations in capitals (QUOTA_EXCEEDED).
var noCapacity = map[string]provision.CapacityScope{
	"RESOURCE_POOL_EXHAUSTED":                   provision.ScopeZone,
	"STOCKOUT":                                  provision.ScopeZone,
	"ZONE_RESOURCE_POOL_EXHAUSTED":              provision.ScopeZone,
	"ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": provision.ScopeZone,
	"UNSUPPORTED_OPERATION":                     provision.ScopeZone,
	"INSUFFICIENT_CAPACITY":                     provision.ScopeZone,
	"RESOURCE_NOT_READY":                        provision.ScopeZone,
	"RESOURCE_OPERATION_RATE_EXCEEDED":          provision.ScopeZone,
	"IP_SPACE_EXHAUSTED":                        provision.ScopeRegion, // of the subnet, which spans all zones
	"IP_SPACE_EXHAUSTED_WITH_DETAILS":           provision.ScopeRegion,
	"QUOTA_EXCEEDED":                            provision.ScopeQuota,
	"VPC_NOT_FOUND":                             provision.ScopeCloud,
}

// The reasons and codes of other errors that this package reacts to. A call has the first form, its operation the
// second.
const (
	codeTaken             = "alreadyExists"
	codeTakenLater        = "RESOURCE_ALREADY_EXISTS"
	codeMissingLater      = "RESOURCE_NOT_FOUND"
	codeBusy              = "resourceNotReady"
	codeBusyLater         = "RESOURCE_NOT_READY"
	codeUsedByOther       = "resourceInUseByAnotherResource"
	codeQuota             = "QUOTA_EXCEEDED"
	codeNoNetwork         = "VPC_NOT_FOUND"           // this package's own, for a message without a code
	codeNoFlexStart       = "FLEX_START_WAIT_EXPIRED" // this package's own, for a machine that Google deleted
	codeDisabledAPI       = "accessNotConfigured"
	codeNoActAsLater      = "SERVICE_ACCOUNT_ACCESS_DENIED"
	codeInsufficientScope = "insufficientPermissions"
	codeForbidden         = "forbidden"
	codeForbiddenLater    = "PERMISSIONS_ERROR"
	codeRate              = "rateLimitExceeded"
	codeUserRate          = "userRateLimitExceeded"
	// codeNoResults is the warning of a scope without machines in a list.
	codeNoResults = "NO_RESULTS_ON_PAGE"
)

// Patterns of messages about capacity, networks and quotas.
var (
	wordEnd         = regexp.MustCompile(`[a-z][A-Z]`)
	noNetwork       = regexp.MustCompile(`/global/networks/[^']*' was not found|referenced network resource cannot be found`)
	noSubnet        = regexp.MustCompile(`/subnetworks/[^']*' was not found|referenced subnetwork resource cannot be found`)
	allRegionsQuota = regexp.MustCompile(`'?\w+_ALL_REGIONS'?`)
)

// Patterns of messages about permissions, organisation policies, service accounts and APIs.
var (
	forStorage = regexp.MustCompile(`does not have (storage\.[a-zA-Z.]+) access`)
	permission = regexp.MustCompile(`'([a-zA-Z]+(?:\.[a-zA-Z]+)+)' permission`)
	constraint = regexp.MustCompile(`[Cc]onstraint '?(constraints/[\w./-]+)`)
	noAccount  = regexp.MustCompile(`The resource '(?:[^']*/)?([^'/]+)' of type 'serviceAccount' was not found`)
	apiName    = regexp.MustCompile(`([A-Z][A-Za-z ]* API) has not been used in project`)
	apisPath   = regexp.MustCompile(`/apis/api/[a-z]+\.googleapis\.com`)
	apiHost    = regexp.MustCompile(`[a-z]+\.googleapis\.com`)
)
