package controller

// machine is what an instance type has.
type machine struct {
	gpu   string
	count int
}

// machines are the instance types of AWS and GCP with GPUs that models can name.
var machines = map[string]machine{
	"g6.xlarge": {"L4", 1}, "g6.2xlarge": {"L4", 1}, "g6.4xlarge": {"L4", 1}, "g6.8xlarge": {"L4", 1}, "g6.16xlarge": {"L4", 1},
	"g6.12xlarge": {"L4", 4}, "g6.24xlarge": {"L4", 4}, "g6.48xlarge": {"L4", 8}, "gr6.4xlarge": {"L4", 1}, "gr6.8xlarge": {"L4", 1},
	"p4d.24xlarge": {"A100", 8}, "p4de.24xlarge": {"A100", 8}, "p5.4xlarge": {"H100", 1}, "p5.48xlarge": {"H100", 8},

	"g2-standard-4": {"L4", 1}, "g2-standard-8": {"L4", 1}, "g2-standard-12": {"L4", 1}, "g2-standard-16": {"L4", 1}, "g2-standard-32": {"L4", 1},
	"g2-standard-24": {"L4", 2}, "g2-standard-48": {"L4", 4}, "g2-standard-96": {"L4", 8},
	"a2-highgpu-1g": {"A100", 1}, "a2-highgpu-2g": {"A100", 2}, "a2-highgpu-4g": {"A100", 4}, "a2-highgpu-8g": {"A100", 8}, "a2-megagpu-16g": {"A100", 16},
	"a2-ultragpu-1g": {"A100", 1}, "a2-ultragpu-2g": {"A100", 2}, "a2-ultragpu-4g": {"A100", 4}, "a2-ultragpu-8g": {"A100", 8},
	"a3-highgpu-1g": {"H100", 1}, "a3-highgpu-2g": {"H100", 2}, "a3-highgpu-4g": {"H100", 4}, "a3-highgpu-8g": {"H100", 8}, "a3-megagpu-8g": {"H100", 8},
}
