package dns

import (
	"cmp"
	"math"
	"slices"

	"skyserve/internal/service"
)

// location is a location on the earth, in degrees.
type location struct {
	name      string
	lat, long float64
}

// awsRegions are the regions that latency records support, with the location of the nearest city. Locations
// are only used to compare distances, so a precision of one degree is sufficient.
var awsRegions = []location{
	{"af-south-1", -33.9, 18.4},
	{"ap-east-1", 22.3, 114.2},
	{"ap-east-2", 25.0, 121.6},
	{"ap-northeast-1", 35.7, 139.7},
	{"ap-northeast-2", 37.6, 127.0},
	{"ap-northeast-3", 34.7, 135.5},
	{"ap-south-1", 19.1, 72.9},
	{"ap-south-2", 17.4, 78.5},
	{"ap-southeast-1", 1.3, 103.8},
	{"ap-southeast-2", -33.9, 151.2},
	{"ap-southeast-3", -6.2, 106.8},
	{"ap-southeast-4", -37.8, 145.0},
	{"ap-southeast-5", 3.1, 101.7},
	{"ap-southeast-6", -36.8, 174.8},
	{"ap-southeast-7", 13.8, 100.5},
	{"ca-central-1", 45.5, -73.6},
	{"ca-west-1", 51.0, -114.1},
	{"eu-central-1", 50.1, 8.7},
	{"eu-central-2", 47.4, 8.5},
	{"eu-north-1", 59.3, 18.1},
	{"eu-south-1", 45.5, 9.2},
	{"eu-south-2", 41.6, -0.9},
	{"eu-west-1", 53.3, -6.3},
	{"eu-west-2", 51.5, -0.1},
	{"eu-west-3", 48.9, 2.4},
	{"il-central-1", 32.1, 34.8},
	{"me-central-1", 25.2, 55.3},
	{"me-south-1", 26.2, 50.6},
	{"mx-central-1", 20.6, -100.4},
	{"sa-east-1", -23.5, -46.6},
	{"us-east-1", 39.0, -77.5},
	{"us-east-2", 40.0, -83.0},
	{"us-west-1", 37.4, -122.0},
	{"us-west-2", 45.8, -119.7},
}

// gcpRegions are Google Cloud's regions.
var gcpRegions = []location{
	{"africa-south1", -26.2, 28.0},
	{"asia-east1", 24.1, 120.5},
	{"asia-east2", 22.3, 114.2},
	{"asia-northeast1", 35.7, 139.7},
	{"asia-northeast2", 34.7, 135.5},
	{"asia-northeast3", 37.6, 127.0},
	{"asia-south1", 19.1, 72.9},
	{"asia-south2", 28.6, 77.2},
	{"asia-southeast1", 1.3, 103.8},
	{"asia-southeast2", -6.2, 106.8},
	{"asia-southeast3", 13.8, 100.5},
	{"australia-southeast1", -33.9, 151.2},
	{"australia-southeast2", -37.8, 145.0},
	{"europe-central2", 52.2, 21.0},
	{"europe-north1", 60.6, 27.2},
	{"europe-north2", 59.3, 18.1},
	{"europe-southwest1", 40.4, -3.7},
	{"europe-west1", 50.4, 3.8},
	{"europe-west2", 51.5, -0.1},
	{"europe-west3", 50.1, 8.7},
	{"europe-west4", 53.4, 6.8},
	{"europe-west6", 47.4, 8.5},
	{"europe-west8", 45.5, 9.2},
	{"europe-west9", 48.9, 2.4},
	{"europe-west10", 52.5, 13.4},
	{"europe-west12", 45.1, 7.7},
	{"me-central1", 25.3, 51.5},
	{"me-central2", 26.4, 50.1},
	{"me-west1", 32.1, 34.8},
	{"northamerica-northeast1", 45.5, -73.6},
	{"northamerica-northeast2", 43.7, -79.4},
	{"northamerica-south1", 20.6, -100.4},
	{"southamerica-east1", -23.5, -46.6},
	{"southamerica-west1", -33.4, -70.7},
	{"us-central1", 41.3, -95.9},
	{"us-east1", 33.2, -80.0},
	{"us-east4", 39.0, -77.5},
	{"us-east5", 40.0, -83.0},
	{"us-south1", 32.8, -96.8},
	{"us-west1", 45.6, -121.2},
	{"us-west2", 34.1, -118.2},
	{"us-west3", 40.8, -111.9},
	{"us-west4", 36.2, -115.1},
}

// cities are the location names for static and local regions: cities, and parts of the world, each with the location
// of one large cloud region there. The names of the clouds' regions are also valid.
var cities = []location{
	{"us", 39.0, -77.5},
	{"eu", 50.1, 8.7},
	{"asia", 35.7, 139.7},
	{"africa", -33.9, 18.4},
	{"amsterdam", 52.4, 4.9},
	{"athens", 38.0, 23.7},
	{"atlanta", 33.7, -84.4},
	{"bangalore", 13.0, 77.6},
	{"barcelona", 41.4, 2.2},
	{"beijing", 39.9, 116.4},
	{"berlin", 52.5, 13.4},
	{"boston", 42.4, -71.1},
	{"brussels", 50.9, 4.4},
	{"budapest", 47.5, 19.0},
	{"buenos-aires", -34.6, -58.4},
	{"cairo", 30.0, 31.2},
	{"cape-town", -33.9, 18.4},
	{"chicago", 41.9, -87.6},
	{"copenhagen", 55.7, 12.6},
	{"dallas", 32.8, -96.8},
	{"delhi", 28.6, 77.2},
	{"denver", 39.7, -105.0},
	{"dubai", 25.2, 55.3},
	{"dublin", 53.3, -6.3},
	{"frankfurt", 50.1, 8.7},
	{"geneva", 46.2, 6.1},
	{"hamburg", 53.6, 10.0},
	{"helsinki", 60.2, 24.9},
	{"hong-kong", 22.3, 114.2},
	{"istanbul", 41.0, 29.0},
	{"jakarta", -6.2, 106.8},
	{"johannesburg", -26.2, 28.0},
	{"lagos", 6.5, 3.4},
	{"lisbon", 38.7, -9.1},
	{"london", 51.5, -0.1},
	{"los-angeles", 34.1, -118.2},
	{"madrid", 40.4, -3.7},
	{"melbourne", -37.8, 145.0},
	{"mexico-city", 19.4, -99.1},
	{"miami", 25.8, -80.2},
	{"milan", 45.5, 9.2},
	{"montreal", 45.5, -73.6},
	{"mumbai", 19.1, 72.9},
	{"munich", 48.1, 11.6},
	{"nairobi", -1.3, 36.8},
	{"new-york", 40.7, -74.0},
	{"osaka", 34.7, 135.5},
	{"oslo", 59.9, 10.8},
	{"paris", 48.9, 2.4},
	{"prague", 50.1, 14.4},
	{"rome", 41.9, 12.5},
	{"san-francisco", 37.8, -122.4},
	{"santiago", -33.4, -70.7},
	{"sao-paulo", -23.5, -46.6},
	{"seattle", 47.6, -122.3},
	{"seoul", 37.6, 127.0},
	{"shanghai", 31.2, 121.5},
	{"singapore", 1.3, 103.8},
	{"stockholm", 59.3, 18.1},
	{"sydney", -33.9, 151.2},
	{"taipei", 25.0, 121.6},
	{"tel-aviv", 32.1, 34.8},
	{"tokyo", 35.7, 139.7},
	{"toronto", 43.7, -79.4},
	{"vancouver", 49.3, -123.1},
	{"vienna", 48.2, 16.4},
	{"warsaw", 52.2, 21.0},
	{"zurich", 47.4, 8.5},
}

// AWSRegionOf returns the AWS region that represents a region in Route 53: the region itself, or the nearest
// AWS region. A location that is neither a region of a cloud nor a known city is a *provision.SpecError.
func AWSRegionOf(region service.Region) (string, error) {
	at, known := locateRegion(region)
	if !known && region.Rented() {
		return "", specError("region %s is unknown, so its place for dns is too: correct the name, or install a version of skyserve that knows the region", region)
	}
	if !known {
		return "", specError("finding the AWS region nearest to %s: unknown location %q; name the region after its city (static/paris), or after the nearest AWS region (static/eu-west-3)", region, region.ShortName())
	}
	nearest := slices.MinFunc(awsRegions, func(a, b location) int {
		return cmp.Or(cmp.Compare(kilometres(at, a), kilometres(at, b)), cmp.Compare(a.name, b.name))
	})
	return nearest.name, nil
}

// locateRegion returns the location of a region. A region in a cloud is in its cloud's table only.
func locateRegion(region service.Region) (location, bool) {
	var tables [][]location
	switch region.Cloud() {
	case service.CloudAWS:
		tables = [][]location{awsRegions}
	case service.CloudGCP:
		tables = [][]location{gcpRegions}
	default:
		tables = [][]location{cities, awsRegions, gcpRegions}
	}
	for _, table := range tables {
		if i := slices.IndexFunc(table, func(p location) bool { return p.name == region.ShortName() }); i >= 0 {
			return table[i], true
		}
	}
	return location{}, false
}

// kilometres returns the distance between two places along the surface (the haversine formula).
func kilometres(a, b location) float64 {
	const radius, degree = 6371, math.Pi / 180
	sin := func(deg float64) float64 { return math.Sin(deg * degree / 2) }
	h := sin(a.lat-b.lat)*sin(a.lat-b.lat) +
		math.Cos(a.lat*degree)*math.Cos(b.lat*degree)*sin(a.long-b.long)*sin(a.long-b.long)
	return 2 * radius * math.Asin(math.Min(1, math.Sqrt(h)))
}
