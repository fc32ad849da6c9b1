package service

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// cloudRegions are the known regions of a cloud. The tables contain the public regions. A cloud adds
// a few per year, so a region that is not in its table is rejected only if its name cannot be one.
type cloudRegions struct {
	cloud, title string
	example      string // a region
	pattern      *regexp.Regexp
	regions      []string // sorted
	source       string   // the source of the table, with its date
}

// clouds contains the table of each cloud that rents out machines.
var clouds = []cloudRegions{
	{
		CloudAWS, "AWS", "us-east-1", regexp.MustCompile(`^[a-z]{2,4}(-[a-z]+)+-[0-9]+$`),
		[]string{
			"af-south-1", "ap-east-1", "ap-east-2", "ap-northeast-1", "ap-northeast-2", "ap-northeast-3", "ap-south-1", "ap-south-2",
			"ap-southeast-1", "ap-southeast-2", "ap-southeast-3", "ap-southeast-4", "ap-southeast-5", "ap-southeast-6", "ap-southeast-7",
			"ca-central-1", "ca-west-1", "cn-north-1", "cn-northwest-1", "eu-central-1", "eu-central-2", "eu-north-1", "eu-south-1",
			"eu-south-2", "eu-west-1", "eu-west-2", "eu-west-3", "eusc-de-east-1", "il-central-1", "me-central-1", "me-south-1",
			"mx-central-1", "sa-east-1", "us-east-1", "us-east-2", "us-gov-east-1", "us-gov-west-1", "us-west-1", "us-west-2",
		},
		"endpoints of EC2 in aws-sdk-go-v2/service/ec2 v1.344.0, November 2026",
	},
	{
		CloudGCP, "Google Cloud", "us-central1", regexp.MustCompile(`^[a-z]+-[a-z]+[0-9]+$`),
		[]string{
			"africa-south1", "asia-east1", "asia-east2", "asia-northeast1", "asia-northeast2", "asia-northeast3", "asia-south1", "asia-south2",
			"asia-southeast1", "asia-southeast2", "asia-southeast3", "australia-southeast1", "australia-southeast2", "europe-central2",
			"europe-north1", "europe-north2", "europe-southwest1", "europe-west1", "europe-west10", "europe-west12", "europe-west2",
			"europe-west3", "europe-west4", "europe-west6", "europe-west8", "europe-west9", "me-central1", "me-central2", "me-west1",
			"northamerica-northeast1", "northamerica-northeast2", "northamerica-south1", "southamerica-east1", "southamerica-west1",
			"us-central1", "us-east1", "us-east4", "us-east5", "us-south1", "us-west1", "us-west2", "us-west3", "us-west4",
		},
		"cloud.google.com/compute/docs/regions-zones, November 2026",
	},
}

// cloudOf returns the known regions of a cloud; nil for local and static.
func cloudOf(name string) *cloudRegions {
	i := slices.IndexFunc(clouds, func(c cloudRegions) bool { return c.cloud == name })
	if i < 0 {
		return nil
	}
	return &clouds[i]
}

// KnownRegions returns the known public regions of a cloud, aws or gcp, sorted.
func KnownRegions(cloud string) []string {
	if c := cloudOf(cloud); c != nil {
		return slices.Clone(c.regions)
	}
	return nil
}

// numbers matches the numbers that distinguish regions of one area.
var numbers = regexp.MustCompile(`[0-9]+`)

// withoutNumbers returns a name without its number. Most new regions differ from a known one only in
// the number.
func withoutNumbers(name string) string { return numbers.ReplaceAllString(name, "#") }

// mayExist reports whether a name that is not in the table may be a new region. It must have the
// format of a region. It must also differ from a known region only in its number, or be similar to
// none.
func (c *cloudRegions) mayExist(name string) bool {
	const near = 2 // maximum number of typos
	if !c.pattern.MatchString(name) {
		return false
	}
	isFamily := func(known string) bool { return withoutNumbers(known) == withoutNumbers(name) }
	isNear := func(known string) bool { return distance(withoutNumbers(known), withoutNumbers(name)) <= near }
	return slices.ContainsFunc(c.regions, isFamily) || !slices.ContainsFunc(c.regions, isNear)
}

// suggestion returns the region that was probably meant.
func (c *cloudRegions) suggestion(name string) string {
	suggestions := []string{}
	if best := Nearest(name, c.regions); best != "" {
		suggestions = append(suggestions, c.cloud+"/"+best)
	}
	for _, other := range clouds {
		if slices.Contains(other.regions, name) {
			suggestions = append(suggestions, other.cloud+"/"+name)
		}
	}
	if len(suggestions) == 0 {
		return fmt.Sprintf("names of %s regions look like %s", c.title, c.example)
	}
	return "did you mean " + strings.Join(suggestions, " or ") + "?"
}

// completeRegion suggests the region that was meant by a name without its cloud, such as us-east-1; "" if there
// is none.
func completeRegion(name string) string {
	for _, c := range clouds {
		if best := Nearest(name, c.regions); best != "" && (best == name || len(name) > 6 && !strings.Contains(name, "/")) {
			return "did you mean " + c.cloud + "/" + best + "?"
		}
	}
	return ""
}

// IsRegionName reports whether a text is CLOUD/REGION, or the name of a region without its cloud, such as us.
func IsRegionName(text string) bool {
	return formRegion.matches(text) || formRegion.matches(CloudLocal+"/"+text)
}

// regionProblem returns what is wrong with the name of a region that does not match formRegion, and a suggestion.
func regionProblem(text string) (problem, suggestion string) {
	problem = "must be " + formRegion.description
	cloud, name, _ := strings.Cut(text, "/")
	if name != "" && formRegion.matches(cloud+"/x") {
		problem = fmt.Sprintf("must have at most 40 lower-case letters a-z, digits and dashes after %s/, no dash first or last", cloud)
	}
	valid := Region(strings.ToLower(cloud) + "/" + dashedName(name))
	known := cloudOf(valid.Cloud())
	switch {
	case !formRegion.matches(string(valid)):
		return problem, completeRegion(text)
	case known != nil && (!known.accepts(valid.ShortName()) || valid.hasReservedName()):
		return problem, known.suggestion(valid.ShortName())
	case valid.hasReservedName():
		return problem, reservedAlternative(valid)
	}
	return problem, "write " + string(valid)
}

// dashedName returns a name in lower case, with dashes in place of the other ASCII characters that a region cannot have.
func dashedName(name string) string {
	return strings.Trim(strings.Map(func(r rune) rune {
		if r <= unicode.MaxASCII && (r < 'a' || r > 'z') && (r < '0' || r > '9') {
			return '-'
		}
		return r
	}, strings.ToLower(name)), "-")
}

// accepts reports whether a name is that of a region, or may be.
func (c *cloudRegions) accepts(name string) bool {
	return slices.Contains(c.regions, name) || c.mayExist(name)
}

// checkCloudRegion rejects a region that its cloud does not have.
func (c *checker) checkCloudRegion(r *RegionSpec, p path) {
	known := cloudOf(r.Name.Cloud())
	if known == nil || known.accepts(r.Name.ShortName()) {
		return
	}
	at := p.key("name")
	c.reportAtPath(at, Error{Problem: "is not a region of " + known.title, Found: c.describePath(at), Suggestion: known.suggestion(r.Name.ShortName())})
}

// Warnings returns possible mistakes in a valid service, one line each, with the key.
func (s *Spec) Warnings() []string {
	var all []string
	for i, r := range s.Regions {
		known := cloudOf(r.Name.Cloud())
		if known != nil && !slices.Contains(known.regions, r.Name.ShortName()) {
			all = append(all, fmt.Sprintf("regions[%d].name: %s is not in the list of regions of %s (%s); check the name", i, r.Name, known.title, known.source))
		}
	}
	for i, m := range s.Models {
		if s.neverServes(&m) {
			all = append(all, fmt.Sprintf("models[%d].regions: max is 0 in every region, so %s never has a replica, and its requests get 503; raise max in a region", i, m.Name))
		}
		for _, tier := range sortedKeys(m.SLO) {
			if m.SLO[tier].E2E > 0 {
				all = append(all, fmt.Sprintf("models[%d].slo.%s.e2e: has no effect in this version: the skyserve_e2e_seconds metric measures the end-to-end latency, and nothing compares it with this target", i, tier))
			}
		}
	}
	return all
}
