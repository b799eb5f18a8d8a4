"""Why a run is slow: the phases of every process, who waited for whom, a roofline, memory; as page and trace."""
