"""The Delta tables: layout, reading without Spark, durability, watermark."""
