package loadtest

import "math"

// Keys draws key numbers from 0 to Count-1, with a skew.
//
// The skewed draw is rejection-inversion (W. Hörmann and G. Derflinger,
// Rejection-inversion to generate variates from monotone discrete distributions,
// ACM TOMACS 6(3), 1996): exact, without a table, for every exponent above 0,
// and in less than 1.2 rounds on average.
type Keys struct {
	count       uint32
	s           float64
	x1, xn, cut float64
}

// NewKeys draws from count keys; s as in Config.Zipf.
func NewKeys(count uint32, s float64) Keys {
	k := Keys{count: count, s: s}
	if s > 0 {
		k.x1 = k.integral(1.5) - 1
		k.xn = k.integral(float64(count) + 0.5)
		k.cut = 2 - k.inverse(k.integral(2.5)-k.weight(2))
	}
	return k
}

// Pick draws a key. random gives numbers from 0 up to and without 1.
func (k Keys) Pick(random func() float64) uint32 {
	if k.s == 0 {
		return min(uint32(random()*float64(k.count)), k.count-1)
	}
	for {
		u := k.xn + random()*(k.x1-k.xn)
		x := k.inverse(u)
		n := min(max(math.Floor(x+0.5), 1), float64(k.count))
		if n-x <= k.cut || u >= k.integral(n+0.5)-k.weight(n) {
			return uint32(n) - 1
		}
	}
}

// weight is the hat 1/x^s, integral its integral, inverse the inverse of that.
// Near s = 1 the plain formulas divide zero by zero; the two quotients below
// go through it smoothly.
func (k Keys) weight(x float64) float64 { return math.Exp(-k.s * math.Log(x)) }

func (k Keys) integral(x float64) float64 {
	l := math.Log(x)
	return expm1Over((1-k.s)*l) * l
}

func (k Keys) inverse(x float64) float64 {
	return math.Exp(log1pOver(max(x*(1-k.s), -1)) * x)
}

// expm1Over is (e^x - 1) / x.
func expm1Over(x float64) float64 {
	if math.Abs(x) < 1e-8 {
		return 1 + x/2
	}
	return math.Expm1(x) / x
}

// log1pOver is ln(1 + x) / x.
func log1pOver(x float64) float64 {
	if math.Abs(x) < 1e-8 {
		return 1 - x/2
	}
	return math.Log1p(x) / x
}
